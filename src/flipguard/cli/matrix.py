"""`flipguard matrix V1 V2 V3 …`."""

from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.outputs import check_outputs, deliver

EPILOG = """Examples:

  flipguard matrix v1.parquet v2.parquet v3.parquet

  flipguard matrix v*.csv --labels new --json chain.json"""


def matrix(
    versions: Annotated[list[str], typer.Argument(metavar="V1 V2…", help="Prediction files, the oldest first.")],
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

    options = {
        "labels": labels,
        "class_map": class_map,
        "on_missing": on_missing,
        "split": split,
        "memory": memory,
        "confidence": confidence,
    }
    sources = [*versions, *(name for name in (labels, class_map) if name not in (None, "old", "new"))]
    check_outputs({"--json": json, "--markdown": markdown}, sources)
    found = run(versions, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    reports: dict[str | None, Any] = {json: lambda: found.to_json() + "\n", markdown: lambda: _markdown(found)}
    deliver(reports, lambda: _table(found), plain=plain)
    return 0


def _markdown(found: Any) -> str:
    from flipguard.reports.markdown import matrix_markdown

    return matrix_markdown(found)


def _table(found: Any) -> Any:
    from flipguard.reports.terminal import matrix_report

    return matrix_report(found)
