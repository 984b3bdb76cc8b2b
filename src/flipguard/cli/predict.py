"""`flipguard predict RUN`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, say
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard predict runs/digits_update --data name=digits --out new.parquet

  flipguard predict runs/digits_update --version old --data recipes/digits_update.yaml --out old.parquet"""


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the folder of one of its versions.")],
    data: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE…|SPEC", help="The data's settings, as in a spec, or a spec that has them."),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write the predictions: a .parquet file.")],
    version: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the last one.")] = None,
    part: Annotated[
        str, typer.Option(metavar="NAME", help="train, validation, test, or a part of the data's own.")
    ] = "test",
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, or auto.")] = "auto",
    trust: o.Trust = False,
    debug: o.Debug = False,
) -> int:
    """Write what a released network says about any data whose classes it knows.

    Exit status: 0 done, 2 bad input.
    """
    from flipguard.spec.training import read_data_plan

    files = [name for name in data if "=" not in name]
    check_outputs({"--out": out}, files)
    if Path(out).suffix.lower() != ".parquet":
        raise InputError(f"--out {out}: predictions are written as .parquet.")
    plan = read_data_plan(data)
    room = with_torch("flipguard.releases.release", "prediction", "train")
    said = room.predict_release(run, plan, version=version, part=part, device=device, trust=trust)
    from flipguard.reports.wording import clean

    written: Any = said.write(out)
    say(f"{written.rows:,} predictions of {clean(said.model)} {clean(said.version)}: {clean(out, 200)}\n")
    return 0
