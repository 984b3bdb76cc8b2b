"""`flipguard methods`."""

from typing import Any

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, deliver

EPILOG = """Examples:

  flipguard methods

  flipguard methods --json - | jq '.[].name'"""


def methods(json: o.Json = None, plain: o.Plain = False, debug: o.Debug = False) -> int:
    """List every training method: its paper and equation, what it costs in single trainings, its parameters."""
    check_outputs({"--json": json}, [])
    cards = with_torch("flipguard.methods", "the list of methods", "train").method_cards()

    def as_json() -> str:
        import json as library

        return library.dumps(cards, indent=2) + "\n"

    deliver({json: as_json}, lambda: _table(cards), plain=plain)
    return 0


def _table(cards: Any) -> Any:
    from flipguard.reports.demo import methods_report

    return methods_report(cards)
