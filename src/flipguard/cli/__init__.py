"""The commands. Each is one library call and the printing of what it returns."""

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


class WithoutPandas(MetaPathFinder):
    """DuckDB and Arrow import pandas wherever it is installed, only to recognise its objects.

    A command meets none of them, and the import would take longer than the rest of a start.
    """

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the flipguard command does without pandas", name="pandas")


def with_pandas() -> None:
    """For commands that load torch, which asks whether there is pandas and expects yes or no for an answer."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, WithoutPandas)]


def main() -> None:
    """The entry point `flipguard`."""
    sys.meta_path.insert(0, WithoutPandas())
    try:
        from flipguard.cli.app import app

        app()
    except KeyboardInterrupt:
        print("flipguard: interrupted.", file=sys.stderr)
        sys.exit(130)
