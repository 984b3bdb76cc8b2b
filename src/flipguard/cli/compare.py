"""`flipguard compare OLD NEW`."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.comparing import comparing, labels_file, named_files, together
from flipguard.cli.outputs import check_outputs, deliver
from flipguard.cli.shell import REFUSED, command_line
from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.comparison.result import Comparison

EPILOG = """Examples:

  flipguard compare old.parquet new.parquet

  flipguard compare old.csv new.csv --max-nfr 0.01 --max-slice-nfr 0.05 --by country

  flipguard compare old.npz new.npz --noise copy1.npz copy2.npz --json - | jq .negative_flip_rate

  flipguard compare old.parquet new.parquet --junit gate.xml --markdown comment.md --html report.html

  flipguard compare spark://head:7077 predictions.v1 predictions.v2 --by country --max-nfr 0.01"""
NOT_ON_SPARK = ("noise", "calibrate_on", "class_map", "flips", "html", "alpha", "memory")
FLIP_ENDINGS = (".parquet", ".csv", ".jsonl")


@comparing
def compare(
    old: Annotated[str, typer.Argument(metavar="OLD", help="What the model in use said: a prediction file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What the model to release said of the same samples.")],
    json: o.Json = None,
    markdown: o.Markdown = None,
    junit: o.Junit = None,
    flips: o.Flips = None,
    html: o.Html = None,
    plain: o.Plain = False,
    debug: o.Debug = False,
    spark: o.Spark = None,
    **compared: Any,
) -> int:
    """Compare two models by what they said about the same samples, and judge whether the new one may be released.

    A prediction file is Parquet, CSV, NPZ or Arrow, or a folder or glob of Parquet parts.

    Its columns: id, label, and prediction, logits or probabilities; any other is a slice. Rows are matched by id.

    `flipguard compare spark://HOST:PORT OLD NEW` compares two tables, or Parquet paths, where a Spark reads them.

    Exit status: 0 fine, 1 the gate refuses, 2 bad input.
    """
    given = together(locals())
    outputs = {f"--{name}": given[name] for name in ("json", "markdown", "junit", "flips", "html")}
    files = named_files(given)
    check_outputs(outputs, files if spark is not None else (old, new, *files))
    _check_flips(flips)
    options, notes = comparison_options(given)
    comparison, page = _compare(given, options, notes) if spark is None else _compare_on_spark(given, options, notes)
    deliver(_reports(comparison, page, given), lambda: _table(comparison), plain=plain)
    return REFUSED if comparison.gate.passed is False else 0


def _check_flips(flips: str | None) -> None:
    if flips is not None and Path(flips).suffix.lower() not in FLIP_ENDINGS:
        raise InputError(f"--flips {flips}: flips are written as {', '.join(FLIP_ENDINGS)}, by the file's ending.")


def comparison_options(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of `flipguard.compare` from a command's and those of the settings file, and notes on the latter."""
    from flipguard.comparison.gate import GateSettings
    from flipguard.spec import CompareSettings, Spec, find_config, merge, read_spec

    path = Path(given["config"]) if given["config"] else None if given["no_config"] else find_config(Path.cwd())
    spec = Spec() if path is None else read_spec(path)
    settings = merge(
        spec,
        {name: given[name] for name in CompareSettings.model_fields},
        {name: given[name] for name in GateSettings.model_fields},
    )
    further = ("labels", "class_map", "noise", "calibrate_on", "flips")
    options = {**settings.compare, **{name: given[name] for name in further if given.get(name) is not None}}
    notes = [] if path is None else [f"settings from {os.path.relpath(path)}."]
    return {**options, "gate": settings.gate}, notes


def noted(comparison: "Comparison", notes: list[str]) -> "Comparison":
    return comparison.model_copy(update={"notes": [*comparison.notes, *notes]})


def _compare(
    given: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> tuple["Comparison", Callable[[], str]]:
    """The comparison, and what makes its page when one is asked for."""
    from flipguard.comparison.run import compare as run
    from flipguard.comparison.run import compare_in_detail

    old, new = given["old"], given["new"]
    if given["html"] is None:
        return noted(run(old, new, **options), notes), str
    from flipguard.reports.html.page import Look, check_extra, gathered, html

    check_extra()
    detail = compare_in_detail(old, new, **options)
    detail = replace(detail, comparison=noted(detail.comparison, notes))
    page = gathered(detail, old, new, Look(command=command_line()), options)
    return detail.comparison, lambda: html(page)


def _compare_on_spark(
    given: dict[str, Any], options: dict[str, Any], notes: list[str]
) -> tuple["Comparison", Callable[[], str]]:
    """The comparison of two tables where they lie; a Spark brings pandas of its own."""
    from flipguard.cli import with_pandas

    for name in NOT_ON_SPARK:
        if given[name] is not None:
            raise InputError(
                f"--{name.replace('_', '-')} needs prediction files: it cannot be had from tables of a Spark."
            )
    if labels_file(given["labels"]):
        raise InputError(f"--labels must be old or new where tables of a Spark are compared, not '{given['labels']}'.")
    with_pandas()
    from flipguard.comparison.spark import compare_on_spark

    # A settings file may have them for the comparisons of files that it also serves.
    known = {name: value for name, value in options.items() if name not in ("alpha", "memory")}
    return noted(compare_on_spark(given["spark"], given["old"], given["new"], **known), notes), str


def _reports(comparison: "Comparison", page: Callable[[], str], given: dict[str, Any]) -> dict[str | None, Any]:
    from flipguard.reports.junit import comparison_junit
    from flipguard.reports.markdown import comparison_markdown

    return {
        given["json"]: lambda: comparison.to_json() + "\n",
        given["markdown"]: lambda: comparison_markdown(comparison),
        given["junit"]: lambda: comparison_junit(comparison),
        given["html"]: page,
    }


def _table(comparison: "Comparison") -> Any:
    from flipguard.reports.terminal import comparison_report

    return comparison_report(comparison)
