"""The commands. Each is one library call and the printing of what it returns."""

import sys


def main() -> None:
    """The entry point `flipguard`."""
    # DuckDB and Arrow import pandas wherever it is installed, only to recognise its objects. A command meets none of
    # them, and the import would take longer than the rest of a start.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    try:
        from flipguard.cli.app import app

        app()
    except KeyboardInterrupt:
        print("flipguard: interrupted.", file=sys.stderr)
        sys.exit(130)
