"""`flipguard methods`."""

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, deliver
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard methods

  flipguard methods elodi fd_kl

  flipguard methods --json - | jq '.[].name'"""


def methods(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these methods.", metavar="NAME", show_default=False)
    ] = None,
    json: o.Json = None,
    plain: o.Plain = False,
    debug: o.Debug = False,
) -> int:
    """List every training method: what it does, its paper and equation, its cost in single trainings, parameters."""
    check_outputs({"--json": json}, [])
    cards = with_torch("flipguard.methods", "the list of methods", "train").method_cards()
    known = [card["name"] for card in cards]
    for name in names or []:
        if name == "recommended":
            raise InputError(
                "recommended is no method of its own: a training spec's `method: recommended` takes one by what each "
                "version follows, and `flipguard train SPEC --dry-run` says which."
            )
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise InputError(f"there is no method '{name}'" + (f"; did you mean '{close[0]}'?" if close else "."))
    cards = [card for card in cards if not names or card["name"] in names]

    def as_json() -> str:
        import json as library

        return library.dumps(cards, indent=2) + "\n"

    deliver({json: as_json}, lambda: _table(cards), plain=plain)
    return 0


def _table(cards: Any) -> Any:
    from flipguard.reports.demo import MethodsReport

    return MethodsReport(cards)
