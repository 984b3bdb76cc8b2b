"""`flipguard matrix V1 V2 V3 …`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.outputs import check_outputs, deliver
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard matrix v1.parquet v2.parquet v3.parquet

  flipguard matrix v*.csv --labels new --json chain.json

  flipguard matrix runs/releases"""


def matrix(
    versions: Annotated[
        list[str], typer.Argument(metavar="V1 V2…|RUN", help="Prediction files, the oldest first; or one run folder.")
    ],
    json: o.Json = None,
    markdown: o.Markdown = None,
    plain: o.Plain = False,
    debug: o.Debug = False,
    labels: o.Labels = None,
    class_map: o.ClassMap = None,
    on_missing: o.OnMissing = None,
    split: o.Split = None,
    memory: o.Memory = None,
    confidence: o.Confidence = None,
) -> int:
    """Compare a chain of versions, each with each: negative flip rates, the error of each, and the flips that pile up.

    Exit status: 0 fine, 2 bad input.
    """
    from flipguard.comparison.chain import matrix as run

    files, shared = _files(versions)
    options = {
        "labels": labels,
        "class_map": class_map,
        "on_missing": on_missing or shared,
        "split": split,
        "memory": memory,
        "confidence": confidence,
    }
    sources = [*files, *(name for name in (labels, class_map) if name not in (None, "old", "new"))]
    check_outputs({"--json": json, "--markdown": markdown}, sources)
    found = run(files, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    reports: dict[str | None, Any] = {json: lambda: found.to_json() + "\n", markdown: lambda: _markdown(found)}
    deliver(reports, lambda: _table(found), plain=plain)
    return 0


def _files(versions: Sequence[str]) -> tuple[list[str], str | None]:
    """The versions' files, and what becomes of ids that some of them lack: dropped where a run's data grew."""
    from flipguard.analysis.runs import is_run, read_run

    runs = [version for version in versions if is_run(version)]
    if runs and len(versions) > 1:
        raise InputError(f"the run folder {runs[0]} stands for all its versions: give it alone, or prediction files.")
    if len(versions) > 1 or not Path(versions[0]).is_dir():
        return list(versions), None
    found = read_run(versions[0])
    found.check_finished()
    return [str(file) for file in found.said], None if found.same_test else "drop"


def _markdown(found: Any) -> str:
    from flipguard.reports.markdown import matrix_markdown

    return matrix_markdown(found)


def _table(found: Any) -> Any:
    from flipguard.reports.terminal import matrix_report

    return matrix_report(found)
