"""`flipguard report OLD NEW`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.compare import comparison_options, noted
from flipguard.cli.outputs import check_outputs, say
from flipguard.cli.shell import command_line

EPILOG = """Examples:

  flipguard report old.parquet new.parquet --out report.html

  flipguard report old.parquet new.parquet --images photos/ --noise copy1.parquet copy2.parquet

  flipguard report v3.parquet v4.parquet --chain v1.parquet v2.parquet --candidates other.parquet

  flipguard report old.parquet new.parquet --data cifar100 --data-dir ~/data"""
LOOK = "Look"


def _look(flag: str, help: str, metavar: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        flag, help=help, rich_help_panel=LOOK, metavar=metavar, show_default=False
    )
    return found


def report(
    old: Annotated[str, typer.Argument(metavar="OLD", help="What the model in use said: a prediction file.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What the model to release said of the same samples.")],
    out: Annotated[str, typer.Option(help="The page to write.", metavar="FILE")] = "report.html",
    debug: o.Debug = False,
    images: Annotated[str | None, _look("--images", "Show thumbnails: a folder with a file per id.", "DIR")] = None,
    data: Annotated[str | None, _look("--data", "Show samples of a data set, such as digits.", "NAME[:WHICH]")] = None,
    data_dir: Annotated[str | None, _look("--data-dir", "Where --data looks. Default: FLIPGUARD_DATA.", "DIR")] = None,
    show: Annotated[list[str] | None, _look("--show", "Columns to show with a flip, such as text.", "COLUMN…")] = None,
    candidates: Annotated[
        list[str] | None, _look("--candidates", "Other new models, set against the same OLD.", "FILE…")
    ] = None,
    chain: Annotated[list[str] | None, _look("--chain", "The versions before OLD, the oldest first.", "FILE…")] = None,
    max_flips: Annotated[
        int | None, _look("--max-flips", "How many flips the page holds. Default: 20000.", "NUMBER")
    ] = None,
    by: o.By = None,
    labels: o.Labels = None,
    class_map: o.ClassMap = None,
    on_missing: o.OnMissing = None,
    split: o.Split = None,
    memory: o.Memory = None,
    confidence: o.Confidence = None,
    cluster: o.Cluster = None,
    noise: o.Noise = None,
    calibrate_on: o.CalibrateOn = None,
    correction: o.Correction = None,
    alpha: o.Alpha = None,
    cost_ratio: o.CostRatio = None,
    max_nfr: o.MaxNfr = None,
    max_relative_nfr: o.MaxRelativeNfr = None,
    max_new_error: o.MaxNewError = None,
    max_error_increase: o.MaxErrorIncrease = None,
    max_churn: o.MaxChurn = None,
    max_new_ece: o.MaxNewEce = None,
    max_noise_excess: o.MaxNoiseExcess = None,
    max_class_nfr: o.MaxClassNfr = None,
    max_slice_nfr: o.MaxSliceNfr = None,
    min_slice: o.MinSlice = None,
    gate_on: o.GateOn = None,
    config: o.Config = None,
    no_config: o.NoConfig = False,
) -> int:
    """Compare two models and write a page to look at: the verdict, where it hurts, and every flip with its sample.

    The page is one file: it works from disk, without a network, on a phone and on paper.

    Exit status: 0 written, 2 bad input. What the gate says stands on the page; `compare` turns it into an exit status.
    """
    given = dict(locals())
    several = ("noise", "calibrate_on", "candidates", "chain")
    sources = [old, new, *(file for name in several for file in given[name] or ())]
    sources += [file for file in (class_map, config) if file]
    sources += [labels] if labels not in (None, "old", "new", "agree") else []
    check_outputs({"--out": out}, sources)
    options, notes = comparison_options(given)
    text, negative_flips = _page(given, options, notes)
    from flipguard.reports.write import write_text

    write_text(Path(out), text)
    say(f"{out}: {negative_flips:,} negative flips, {len(text.encode()) / 1e6:.1f} MB\n")
    return 0


def _page(given: dict[str, Any], options: dict[str, Any], notes: list[str]) -> tuple[str, int]:
    from flipguard.comparison.run import compare_in_detail
    from flipguard.reports.html.page import MAX_FLIPS, Look, check_extra, gathered, html

    look = Look(
        images=given["images"],
        data=given["data"],
        data_folder=given["data_dir"],
        show=given["show"],
        candidates=given["candidates"] or (),
        chain=given["chain"] or (),
        max_flips=MAX_FLIPS if given["max_flips"] is None else given["max_flips"],
        command=command_line(),
    )
    check_extra()
    detail = compare_in_detail(given["old"], given["new"], **options)
    detail = replace(detail, comparison=noted(detail.comparison, notes))
    page = gathered(detail, given["old"], given["new"], look, options)
    return html(page), detail.comparison.negative_flips
