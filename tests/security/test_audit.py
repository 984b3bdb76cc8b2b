"""The audit of installed packages says when nobody answered, and takes no silence for a yes."""

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "audit.py"


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def index() -> Iterator[Callable[[Any], str]]:
    """An index that answers everything by what it is told."""
    said: list[Any] = []

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said[-1]).encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def answering(value: Any) -> str:
            said.append(value)
            return f"http://127.0.0.1:{server.server_port}/pypi/x/json"

        yield answering
        server.shutdown()


def test_only_an_index_with_advisories_counts(audit: Any, index: Callable[[Any], str]) -> None:
    audit.KNOWN = index({"info": {}, "vulnerabilities": [{"id": "PYSEC-1"}]})
    assert audit.silence() is None
    for mute in ({"info": {}}, {"vulnerabilities": []}):
        audit.KNOWN = index(mute)
        assert audit.silence() == "it lists no advisories"
    audit.KNOWN = "http://127.0.0.1:9/pypi/x/json"
    assert "refused" in audit.silence()


@pytest.mark.parametrize(("flags", "status"), [([], 2), (["--if-reachable"], 0)])
def test_silence_is_said(
    flags: list[str], status: int, audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit.KNOWN = "http://127.0.0.1:9/pypi/x/json"
    monkeypatch.setattr("sys.argv", ["audit.py", "python", *flags])
    assert audit.main() == status
    said = capsys.readouterr().out
    assert said.startswith("audit: NOT DONE. http://127.0.0.1:9 cannot be asked")
    assert said.count("\n") == 1


def test_what_is_installed_is_pinned_without_local_versions(audit: Any) -> None:
    import sys

    lines = audit.installed(sys.executable).splitlines()
    assert any(line.startswith("numpy==") for line in lines)
    assert all("==" in line and "+" not in line and not line.startswith("flipguard==") for line in lines)
