"""The ready CI jobs: their YAML is read, their commands are run, and the comment reaches a server."""

import json
import os
import subprocess
import sys
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipguard.reports.markdown import MARKER

EXAMPLES = Path(__file__).parent.parent / "examples"


class Notes(BaseHTTPRequestHandler):
    """As much of GitLab's API as the job speaks to: the notes of one merge request."""

    notes: list[dict[str, Any]]
    tokens: list[str | None]

    def do_GET(self) -> None:
        address = urllib.parse.urlparse(self.path)
        asked = urllib.parse.parse_qs(address.query)
        first = 100 * (int(asked.pop("page")[0]) - 1)
        assert asked == {"sort": ["asc"], "per_page": ["100"]}
        self._answer(address.path == "/api/v4/projects/7/merge_requests/11/notes", self.notes[first : first + 100])

    def do_POST(self) -> None:
        self.notes.append({"id": 1000 + len(self.notes), "body": self._body()})
        self._answer(self.path == "/api/v4/projects/7/merge_requests/11/notes", self.notes[-1])

    def do_PUT(self) -> None:
        found = [note for note in self.notes if self.path.endswith(f"/merge_requests/11/notes/{note['id']}")]
        found[0]["body"] = self._body()
        self._answer(True, found[0])

    def _body(self) -> str:
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        return urllib.parse.parse_qs(sent)["body"][0]

    def _answer(self, known: bool, value: Any) -> None:
        self.tokens.append(self.headers["PRIVATE-TOKEN"])
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Notes.notes, Notes.tokens = [{"id": 3, "body": "Looks good to me."}], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Notes) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening
        listening.shutdown()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose two scripts bring predictions, with a gate that can be moved."""
    label = [i % 3 for i in range(101)]
    for name, every in (("old", 10), ("new", 17)):
        said = [(c + 1) % 3 if i % every == 0 else c for i, c in enumerate(label)]
        rows = "\n".join(f"{i},{c},{p}" for i, (c, p) in enumerate(zip(label, said, strict=True)))
        (tmp_path / f"{name}.csv").write_text(f"id,label,prediction\n{rows}\n")
    convert = "import sys, flipguard; flipguard.read_predictions(sys.argv[1]).write(sys.argv[2])"
    for script, source in (("fetch-released-predictions.sh", "old.csv"), ("predict.sh", "new.csv")):
        path = tmp_path / script
        path.write_text(f"#!/bin/sh\n{sys.executable} -c '{convert}' {source} \"$1\"\n")
        path.chmod(0o755)
    command = tmp_path / "bin" / "flipguard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flipguard "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".git").mkdir()
    (tmp_path / "flipguard.toml").write_text("[gate]\nmax_nfr = 0.5\n")
    return tmp_path


def shell(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "NO_PROXY": "127.0.0.1", **variables}
    return subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{script}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def gitlab_job() -> dict[str, Any]:
    jobs = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))
    assert list(jobs) == ["flipguard"]
    job: dict[str, Any] = jobs["flipguard"]
    return job


def test_the_gitlab_job_compares_and_keeps_one_comment(checkout: Path, server: ThreadingHTTPServer) -> None:
    job = gitlab_job()
    variables = {
        "CI_API_V4_URL": f"http://127.0.0.1:{server.server_port}/api/v4",
        "CI_PROJECT_ID": "7",
        "CI_MERGE_REQUEST_IID": "11",
        "FLIPGUARD_TOKEN": "secret",
    }
    fine = shell(checkout, "\n".join(job["script"]), **variables)
    assert fine.returncode == 0, fine.stderr
    written = [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]]
    assert all((checkout / name).is_file() for name in written)
    assert ET.parse(checkout / "flipguard.xml").getroot().tag in ("testsuites", "testsuite")
    comment = "\n".join(job["after_script"])
    assert shell(checkout, comment, **variables).returncode == 0
    assert [note["body"].partition("\n")[0] for note in Notes.notes] == ["Looks good to me.", MARKER]
    assert "the gate passes" in Notes.notes[1]["body"]
    (checkout / "flipguard.toml").write_text("[gate]\nmax_nfr = 0.01\n")
    assert shell(checkout, "\n".join(job["script"]), **variables).returncode == 1
    again = shell(checkout, comment, **variables)
    assert again.returncode == 0, again.stderr
    assert len(Notes.notes) == 2
    assert "the gate refuses" in Notes.notes[1]["body"]
    assert Notes.notes[1]["body"] == (checkout / "flipguard.md").read_text()
    assert set(Notes.tokens) == {"secret"}


def test_the_gitlab_job_says_nothing_without_a_report_and_fails_on_a_server_that_refuses(
    checkout: Path, server: ThreadingHTTPServer
) -> None:
    comment = "\n".join(gitlab_job()["after_script"])
    variables = {"CI_PROJECT_ID": "8", "CI_MERGE_REQUEST_IID": "11", "FLIPGUARD_TOKEN": "secret"}
    variables["CI_API_V4_URL"] = f"http://127.0.0.1:{server.server_port}/api/v4"
    assert shell(checkout, comment, **variables).returncode == 0
    assert Notes.tokens == []
    (checkout / "flipguard.md").write_text(f"{MARKER}\n")
    assert shell(checkout, comment, **variables).returncode != 0
    assert len(Notes.notes) == 1


@pytest.mark.parametrize("before", [99, 100, 200, 211])
def test_the_gitlab_job_finds_its_comment_behind_many_others(
    checkout: Path, server: ThreadingHTTPServer, before: int
) -> None:
    comment = "\n".join(gitlab_job()["after_script"])
    variables = {"CI_PROJECT_ID": "7", "CI_MERGE_REQUEST_IID": "11", "FLIPGUARD_TOKEN": "secret"}
    variables["CI_API_V4_URL"] = f"http://127.0.0.1:{server.server_port}/api/v4"
    Notes.notes = [{"id": i, "body": f"Note {i}"} for i in range(before)]
    for text in ("first", "second"):
        (checkout / "flipguard.md").write_text(f"{MARKER}\n{text}\n")
        done = shell(checkout, comment, **variables)
        assert done.returncode == 0, done.stderr
        assert len(Notes.notes) == before + 1
        assert Notes.notes[-1]["body"] == f"{MARKER}\n{text}\n"


@pytest.mark.parametrize("token", [{}, {"FLIPGUARD_TOKEN": ""}])
def test_the_gitlab_job_says_on_one_line_that_it_has_no_token(checkout: Path, token: dict[str, str]) -> None:
    (checkout / "flipguard.md").write_text(f"{MARKER}\n")
    done = shell(checkout, "\n".join(gitlab_job()["after_script"]), **token)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "set the masked variable FLIPGUARD_TOKEN" in line


GH = """
import json, sys
from pathlib import Path

words, notes = sys.argv[1:], Path("comments.json")
said = json.loads(notes.read_text())
with Path("calls.txt").open("a") as calls:
    calls.write(" ".join(words) + "\\n")
if words[0] == "pr":
    assert words == ["pr", "comment", "11", "--body-file", "flipguard.md"], words
    said.append({"id": 100 + len(said), "body": Path(words[4]).read_text()})
elif words[1] == "--method":
    assert words[1:3] == ["--method", "PATCH"] and words[4:] == ["-F", "body=@flipguard.md", "--silent"], words
    [found] = [one for one in said if words[3] == f"repos/owner/name/issues/comments/{one['id']}"]
    found["body"] = Path("flipguard.md").read_text()
else:
    assert words[:4] == ["api", "repos/owner/name/issues/11/comments", "--paginate", "--jq"], words
    # gh brings a jq of its own; of its language this is the one filter that the job has.
    start = '.[] | select(.body | startswith("'
    assert words[4].startswith(start) and words[4].endswith('")) | .id'), words
    marker = words[4].removeprefix(start).removesuffix('")) | .id')
    print("\\n".join(str(one["id"]) for one in said if one["body"].startswith(marker)))
notes.write_text(json.dumps(said))
"""
"""As much of GitHub's command as the job calls, with the comments in a file. A call that it does not know fails."""


@pytest.fixture
def comments(checkout: Path) -> Path:
    """A pull request in which someone has spoken."""
    (checkout / "bin" / "gh").write_text(f"#!{sys.executable}\n{GH}")
    (checkout / "bin" / "gh").chmod(0o755)
    (checkout / "comments.json").write_text(json.dumps([{"id": 3, "body": "Looks good to me."}]))
    return checkout / "comments.json"


def github_steps() -> dict[str, dict[str, Any]]:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
    return {step.get("name", ""): step for step in workflow["jobs"]["gate"]["steps"]}


def test_the_github_job_compares_and_keeps_one_comment(checkout: Path, comments: Path) -> None:
    steps = github_steps()
    variables = {"GITHUB_REPOSITORY": "owner/name", "FROM": "owner/name", "PULL": "11", "GH_TOKEN": "secret"}
    assert set(steps["Comment"]["env"]) <= set(variables)
    for name in ("Predictions", "Compare"):
        done = shell(checkout, steps[name]["run"])
        assert done.returncode == 0, done.stderr
    patterns = steps["Keep the reports"]["with"]["path"].split()
    assert all(list(checkout.glob(pattern)) for pattern in patterns)
    first = shell(checkout, steps["Comment"]["run"], **variables)
    assert first.returncode == 0, first.stderr
    said = json.loads(comments.read_text())
    assert [one["body"].partition("\n")[0] for one in said] == ["Looks good to me.", MARKER]
    assert "the gate passes" in said[1]["body"]
    (checkout / "flipguard.toml").write_text("[gate]\nmax_nfr = 0.01\n")
    assert shell(checkout, steps["Compare"]["run"]).returncode == 1
    again = shell(checkout, steps["Comment"]["run"], **variables)
    assert again.returncode == 0, again.stderr
    said = json.loads(comments.read_text())
    assert [one["id"] for one in said] == [3, 101]
    assert said[1]["body"] == (checkout / "flipguard.md").read_text()
    assert "the gate refuses" in said[1]["body"]
    calls = (checkout / "calls.txt").read_text().splitlines()
    listed = "api repos/owner/name/issues/11/comments"
    assert [" ".join(call.split()[:2]) for call in calls] == [listed, "pr comment", listed, "api --method"]


def test_the_github_comment_fails_where_github_refuses(checkout: Path, comments: Path) -> None:
    (checkout / "flipguard.md").write_text(f"{MARKER}\n")
    wrong = {"GITHUB_REPOSITORY": "owner/other", "FROM": "owner/other", "PULL": "11", "GH_TOKEN": "secret"}
    assert shell(checkout, github_steps()["Comment"]["run"], **wrong).returncode != 0
    assert len(json.loads(comments.read_text())) == 1


@pytest.mark.parametrize("fork", ["someone/name", ""])
def test_the_github_job_of_a_fork_shows_its_report_without_a_comment(checkout: Path, comments: Path, fork: str) -> None:
    """The name of a fork that is gone by now is empty. Whoever calls `gh` there is refused, and the job fails."""
    (checkout / "flipguard.md").write_text(f"{MARKER}\nfigures\n")
    (checkout / "bin" / "gh").write_text("#!/bin/sh\nexit 1\n")
    steps = github_steps()
    assert steps["Summary"]["if"] == steps["Comment"]["if"]
    assert shell(checkout, steps["Summary"]["run"], GITHUB_STEP_SUMMARY="summary.md").returncode == 0
    assert (checkout / "summary.md").read_text() == f"{MARKER}\nfigures\n"
    done = shell(checkout, steps["Comment"]["run"], GITHUB_REPOSITORY="owner/name", FROM=fork, PULL="11", GH_TOKEN="no")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1


def test_the_jobs_install_what_a_variable_names(checkout: Path) -> None:
    """flipguard from PyPI unless another requirement is put there; a `pip` on PATH writes down what it is asked for."""
    (checkout / "bin" / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked.txt\n')
    (checkout / "bin" / "pip").chmod(0o755)
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text(encoding="utf-8"))
    jobs = [(github_steps()["Install"]["run"], workflow["env"])]
    jobs += [("\n".join(gitlab_job()["before_script"]), gitlab_job()["variables"])]
    for script, variables in jobs:
        assert variables == {"FLIPGUARD": "flipguard"}
        for wanted in (variables["FLIPGUARD"], "flipguard @ file:///wheels/flipguard.whl"):
            assert shell(checkout, script, FLIPGUARD=wanted).returncode == 0
            assert (checkout / "asked.txt").read_text().splitlines() == ["install", wanted]
