"""`flipguard report OLD NEW`, or `flipguard report RUN`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.compare import comparison_options, noted
from flipguard.cli.comparing import comparing, named_files, together
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, say
from flipguard.cli.shell import command_line
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard report old.parquet new.parquet --out report.html

  flipguard report runs/digits_chain --data digits

  flipguard report old.parquet new.parquet --images photos/ --noise copy1.parquet copy2.parquet

  flipguard report old.parquet new.parquet --figures ensemble_size.json

  flipguard report v3.parquet v4.parquet --chain v1.parquet v2.parquet --candidates other.parquet

  flipguard report old.parquet new.parquet --data cifar100 --data-dir ~/data

  flipguard report old.parquet new.parquet --data name=table folder=mine train=train.csv test=test.csv"""
LOOK = "Look"


def _look(flag: str, help: str, metavar: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        flag, help=help, rich_help_panel=LOOK, metavar=metavar, show_default=False
    )
    return found


@comparing
def report(
    old: Annotated[
        str, typer.Argument(metavar="OLD|RUN", help="What the model in use said: a prediction file. Or a run folder.")
    ],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="What the model to release said of the same samples.")
    ] = None,
    out: Annotated[str, typer.Option(help="The page to write.", metavar="FILE")] = "report.html",
    debug: o.Debug = False,
    images: Annotated[str | None, _look("--images", "Show thumbnails: a folder with a file per id.", "DIR")] = None,
    data: Annotated[
        list[str] | None,
        _look(
            "--data", "Show samples of a data set: digits, a spec that has it, or settings as in one.", "NAME|SPEC|…"
        ),
    ] = None,
    data_dir: Annotated[str | None, _look("--data-dir", "Where --data looks. Default: FLIPGUARD_DATA.", "DIR")] = None,
    show: Annotated[list[str] | None, _look("--show", "Columns to show with a flip, such as text.", "COLUMN…")] = None,
    candidates: Annotated[
        list[str] | None, _look("--candidates", "Other new models, set against the same OLD.", "FILE…")
    ] = None,
    chain: Annotated[list[str] | None, _look("--chain", "The versions before OLD, the oldest first.", "FILE…")] = None,
    figures: Annotated[
        list[str] | None, _look("--figures", "Show figures: .json files of flipguard figure.", "FILE…")
    ] = None,
    max_flips: Annotated[
        int | None, _look("--max-flips", "How many flips the page holds. Default: 20000.", "NUMBER")
    ] = None,
    **compared: Any,
) -> int:
    """Compare two models and write a page to look at: the verdict, where it hurts, and every flip with its sample.

    The page is one file: it works from disk, without a network, on a phone and on paper.

    Of a run folder the last version is compared with the one before; those before it are the chain, and what was
    measured at every epoch is a figure.

    Exit status: 0 written, 2 bad input. What the gate says stands on the page; `compare` turns it into an exit status.
    """
    given = _sides(together(locals()))
    sources = [str(given["old"]), str(given["new"]), *named_files(given)]
    sources += [str(file) for name in ("candidates", "chain", "figures") for file in given[name] or ()]
    sources += [spec for spec in given["data"] or () if _is_spec(spec)]
    check_outputs({"--out": out}, sources)
    options, notes = comparison_options(given)
    options["gate"] = _gate(given["gate"], options["gate"], notes)
    text, negative_flips = _page(given, options, notes)
    from flipguard.reports.wording import clean
    from flipguard.reports.write import write_text

    write_text(Path(out), text)
    say(f"{clean(out, 200)}: {negative_flips:,} negative flips, {len(text.encode()) / 1e6:.1f} MB\n")
    return 0


def _sides(given: dict[str, Any]) -> dict[str, Any]:
    """The options with both sides as files; those of a run folder come from its versions, as does its gate."""
    from flipguard.analysis.epochs import flips_over_epochs
    from flipguard.analysis.runs import is_run, read_run

    old, new = given["old"], given["new"]
    if new is None and not Path(old).is_dir():
        raise InputError(f"{old} is no run folder: give OLD and NEW, two prediction files, or a run folder alone.")
    if new is not None and is_run(old):
        raise InputError(
            f"the run folder {old} stands for both sides, and {new} came as NEW: give the run alone, and each value of "
            "an option with a flag of its own."
        )
    if new is not None:
        return {**given, "gate": None, "trained": ()}
    run = read_run(old)
    before, after = run.update
    found = {"old": before, "new": after, "chain": given["chain"] or run.chain, "gate": run.spec.get("gate")}
    found["trained"] = [flips_over_epochs({"": [run]})] if run.measured_epochs else []
    if not run.same_test:
        found["on_missing"] = given["on_missing"] or "drop"
    return {**given, **found}


def _gate(run: dict[str, Any] | None, asked: Any, notes: list[str]) -> Any:
    """What was asked for here, else what the run's spec asks for."""
    from flipguard.comparison.gate import GateSettings

    if not run or asked.model_dump(exclude_defaults=True):
        return asked
    notes.append("gate from the run's spec.")
    return GateSettings.model_validate(run)


def _data(given: list[str], folder: str | None) -> Any:
    """A data set's name as it is; that of a spec, or of settings such as `predict` takes, loaded."""
    if not given or (len(given) == 1 and "=" not in given[0] and not _is_spec(given[0])):
        return given[0] if given else None
    from flipguard.spec.training import read_data_plan

    plan = read_data_plan(given)
    if folder is not None:
        plan = plan.model_copy(update={"folder": folder})
    return with_torch("flipguard.releases.material", "the samples", "train").load(plan)


def _is_spec(word: str) -> bool:
    return "=" not in word and Path(word).suffix in (".yaml", ".yml")


def _page(given: dict[str, Any], options: dict[str, Any], notes: list[str]) -> tuple[str, int]:
    from flipguard.comparison.run import compare_in_detail
    from flipguard.reports.html.page import MAX_FLIPS, Look, check_extra, gathered, html

    look = Look(
        images=given["images"],
        data=_data(given["data"] or [], given["data_dir"]),
        data_folder=given["data_dir"],
        show=given["show"],
        candidates=given["candidates"] or (),
        chain=given["chain"] or (),
        figures=[*(given["figures"] or ()), *given["trained"]],
        max_flips=MAX_FLIPS if given["max_flips"] is None else given["max_flips"],
        command=command_line(),
    )
    check_extra()
    detail = compare_in_detail(given["old"], given["new"], **options)
    detail = replace(detail, comparison=noted(detail.comparison, notes))
    page = gathered(detail, given["old"], given["new"], look, options)
    return html(page), detail.comparison.negative_flips
