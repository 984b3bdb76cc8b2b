"""`flipguard rewrite V0 V1 … --out FILE`."""

from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.outputs import check_outputs, deliver
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard rewrite v1.parquet v2.parquet v3.parquet --split validation --out stored.parquet

  flipguard rewrite v1.csv v2.csv --rule cr --cost-ratio 10 --calibrate-on v1_val.csv v2_val.csv --out stored.parquet"""
RULE = "Rule"

Out = Annotated[str, typer.Option("--out", help="Write the predictions to store (.parquet).", metavar="FILE")]
ChosenRule = Annotated[
    str | None,
    typer.Option(
        "--rule",
        help="Follow the belief always (mb), when it got surer (mbme), or past the cost ratio (cr, the default).",
        metavar="mb|mbme|cr",
        rich_help_panel=RULE,
    ),
]
Cost = Annotated[
    float | None,
    typer.Option(
        "--cost-ratio",
        help="What a negative flip costs, in positive flips. Default: 5.",
        metavar="NUMBER",
        rich_help_panel=RULE,
    ),
]
Reliability = Annotated[
    str | None,
    typer.Option(
        "--likelihood",
        help="Each version's confusion matrix whole, or its diagonal with the rest spread. Default: by the rows there.",
        metavar="auto|confusion|diagonal",
        rich_help_panel=RULE,
    ),
]
CalibrateOn = Annotated[
    list[str] | None,
    typer.Option(
        "--calibrate-on",
        help="Estimate reliability on these ids; or on other data, a prediction file per version.",
        metavar="FILE…",
        rich_help_panel=o.DATA,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Estimate reliability on this split's rows, and rewrite the others.",
        metavar="NAME",
        rich_help_panel=o.DATA,
    ),
]
SameRows = Annotated[
    bool,
    typer.Option(
        "--same-rows",
        help="Estimate on the rewritten rows' own labels: figures that flatter the rule.",
        rich_help_panel=o.DATA,
    ),
]
Posteriors = Annotated[
    bool,
    typer.Option(
        "--posteriors", help="Write the belief in each class too, its logarithm as logits.", rich_help_panel=o.OUTPUT
    ),
]


def rewrite(
    versions: Annotated[list[str], typer.Argument(metavar="V0 V1…", help="Prediction files, the oldest first.")],
    out: Out,
    rule: ChosenRule = None,
    cost_ratio: Cost = None,
    likelihood: Reliability = None,
    calibrate_on: CalibrateOn = None,
    split: Split = None,
    same_rows: SameRows = False,
    posteriors: Posteriors = False,
    json: o.Json = None,
    plain: o.Plain = False,
    debug: o.Debug = False,
) -> int:
    """Decide what to store for each sample after a chain of versions, so that fewer right answers are lost.

    A Bayesian update of stored predictions: no model, no training.

    Exit status: 0 fine, 2 bad input.
    """
    from flipguard.comparison.rewriting import rewrite as run

    check_outputs({"--out": out, "--json": json}, [*versions, *(calibrate_on or ())])
    if not out.lower().endswith((".parquet", ".pq")):
        raise InputError(f"--out {out}: predictions are written as Parquet: name a file that ends in .parquet.")
    options: dict[str, Any] = {
        "rule": rule,
        "cost_ratio": cost_ratio,
        "likelihood": likelihood,
        "calibrate_on": calibrate_on,
        "split": split,
    }
    given = {name: value for name, value in options.items() if value is not None}
    found = run(versions, same_rows=same_rows, posteriors=posteriors, **given)
    found.predictions.write(out)
    # With a file per version, and by the rows' own labels, every row is rewritten.
    fewer = split is not None or len(calibrate_on or ()) == 1
    deliver({json: lambda: found.to_json() + "\n"}, lambda: _table(found, out, fewer), plain=plain)
    return 0


def _table(found: Any, out: str, fewer: bool) -> Any:
    from flipguard.reports.rewritten import rewritten_report

    return rewritten_report(found, fewer_in=out if fewer else None)
