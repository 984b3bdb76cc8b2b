"""`flipguard demo`."""

import importlib
from types import ModuleType
from typing import Annotated, Any

import typer

from flipguard._heap import keep_freed_memory
from flipguard.cli import options as o
from flipguard.cli import with_pandas
from flipguard.cli.outputs import check_outputs, deliver, say
from flipguard.types import InputError, MissingExtra

EPILOG = """Example:

  flipguard demo --picture demo.png --json demo.json"""


def demo(
    json: o.Json = None,
    picture: Annotated[str | None, typer.Option(help="Draw error against negative flips: a .png or .svg file.")] = None,
    pairs: Annotated[int, typer.Option(min=2, max=50, help="Old/new pairs, each from seeds of its own.")] = 6,
    plain: o.Plain = False,
    debug: o.Debug = False,
) -> int:
    """Train a whole update on scikit-learn's digits: no treatment, focal distillation, ELODI, the ensemble itself.

    About a minute on two cores. The setting was chosen on other seeds than those shown.
    """
    check_outputs({"--json": json, "--picture": picture}, [])
    room = with_torch("flipguard.demo", "the demo", "demo")
    if picture is not None:
        with_torch("matplotlib", "the picture", "demo")
        if not picture.lower().endswith((".png", ".svg", ".pdf")):
            raise InputError(f"{picture}: a picture is a .png, .svg or .pdf file.")
    quiet = json == "-"
    outcomes = room.run(range(pairs), on_pair=None if quiet else lambda done: say(f"pair {done} of {pairs} done\n"))
    if picture is not None:
        room.draw(outcomes, picture)

    def as_json() -> str:
        import json as library

        return library.dumps([outcome.summary() for outcome in outcomes], indent=2) + "\n"

    deliver({json: as_json}, lambda: _table(outcomes), plain=plain)
    return 0


def with_torch(name: str, what: str, extra: str) -> ModuleType:
    """A room that needs torch, or the name of the extra that brings it. The process is the command's own."""
    with_pandas()
    keep_freed_memory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{what} needs {error.name}: pip install 'flipguard[{extra}]'") from error


def _table(outcomes: Any) -> Any:
    from flipguard.reports.demo import demo_report

    return demo_report([outcome.summary() for outcome in outcomes])
