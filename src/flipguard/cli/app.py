"""The application: which commands there are."""

from typing import Annotated

import typer

from flipguard._version import __version__
from flipguard.cli import (
    bench,
    compare,
    demo,
    export,
    figure,
    matrix,
    methods,
    predict,
    report,
    rewrite,
    schema,
    shards,
    train,
)
from flipguard.cli.shell import ClusterFirst, OneLineErrors, SeveralValues

app = typer.Typer(
    name="flipguard",
    cls=OneLineErrors,
    help="Measure, gate and prevent negative flips when a classifier is updated.",
    epilog=f"{compare.EPILOG}\n\n  flipguard report old.parquet new.parquet --out report.html\n\n"
    "  flipguard train recipes/digits_update.yaml\n\n  flipguard matrix v1.parquet v2.parquet v3.parquet",
    pretty_exceptions_enable=False,
)
app.command(name="compare", cls=ClusterFirst, epilog=compare.EPILOG)(compare.compare)
app.command(name="matrix", epilog=matrix.EPILOG)(matrix.matrix)
app.command(name="report", cls=SeveralValues, epilog=report.EPILOG)(report.report)
app.command(name="figure", cls=SeveralValues, epilog=figure.EPILOG)(figure.figure)
app.command(name="rewrite", cls=SeveralValues, epilog=rewrite.EPILOG)(rewrite.rewrite)
app.command(name="schema", epilog=schema.EPILOG)(schema.schema)
app.command(name="train", epilog=train.EPILOG)(train.train)
app.command(name="predict", cls=SeveralValues, epilog=predict.EPILOG)(predict.predict)
app.command(name="export", epilog=export.EPILOG)(export.export)
app.command(name="bench", epilog=bench.EPILOG)(bench.bench)
app.command(name="shards", epilog=shards.EPILOG)(shards.shards)
app.command(name="methods", epilog=methods.EPILOG)(methods.methods)
app.command(name="demo", epilog=demo.EPILOG)(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flipguard {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def flipguard(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")
