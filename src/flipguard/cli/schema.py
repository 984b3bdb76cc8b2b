"""`flipguard schema [comparison|matrix|train]`."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from flipguard.cli.outputs import say

EPILOG = """Example:

  flipguard schema comparison > comparison.schema.json"""


class Kind(StrEnum):
    comparison = "comparison"
    matrix = "matrix"
    train = "train"


def schema(
    kind: Annotated[
        Kind, typer.Argument(help="What --json of compare, or of matrix, writes; or what train reads.")
    ] = Kind.comparison,
) -> int:
    """Print the JSON Schema of what --json writes, or of a training spec."""
    from flipguard.comparison.result import Comparison, Matrix, json_schema
    from flipguard.spec.training import training_schema

    if kind is Kind.train:
        say(json.dumps(training_schema(), indent=2, ensure_ascii=False) + "\n")
        return 0
    found = json_schema(Comparison if kind is Kind.comparison else Matrix)
    say(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0
