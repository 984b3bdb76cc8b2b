"""`flipguard predict RUN`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, say
from flipguard.cli.own_data import own_data
from flipguard.cli.train import aside
from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.predictions import Predictions
    from flipguard.releases.plan import DataPlan

EPILOG = """Examples:

  flipguard predict runs/digits_update --out new.parquet

  flipguard predict runs/digits_update --version old --out old.parquet

  flipguard predict runs/digits_update --data name=table folder=. train=a.csv test=b.csv --out said.parquet"""


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the folder of one of its versions.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write the predictions: a .parquet file.")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE…|SPEC",
            help="The data's settings, as in a spec, or a spec that has them. Default: the run's own.",
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the last one.")] = None,
    part: Annotated[
        str, typer.Option(metavar="NAME", help="train, validation, test, or a part of the data's own.")
    ] = "test",
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, or auto.")] = "auto",
    trust: o.Trust = False,
    debug: o.Debug = False,
) -> int:
    """Write what a released network says about its run's own data, or any whose classes it knows.

    The file of the run's own test part can be compared with what the run keeps of other versions. Rows that the network
    was trained on are told of on stderr.

    Exit status: 0 done, 2 bad input.
    """
    from flipguard.releases.folder import version_home
    from flipguard.reports.wording import clean
    from flipguard.spec.training import read_data_plan

    files = [name for name in data or () if "=" not in name]
    check_outputs({"--out": out}, files)
    if Path(out).suffix.lower() != ".parquet":
        raise InputError(f"--out {out}: predictions are written as .parquet.")
    home = version_home(Path(run), version)
    plan = read_data_plan(data) if data else own_data(home, "prediction")
    room = with_torch("flipguard.releases.release", "prediction", "train")
    try:
        said = room.predict_release(home, plan, part=part, device=device, trust=trust)
    except InputError as error:
        if data:
            raise
        raise InputError(f"of the run's own data: {error} Others are named by --data.") from error
    written: Any = said.write(out)
    say(f"{written.rows:,} predictions of {clean(said.model)} {clean(said.version)}: {clean(out, 200)}\n")
    _tell_of_trained(said, plan, part, home)
    return 0


def _tell_of_trained(said: "Predictions", plan: "DataPlan", part: str, home: Path) -> None:
    """A network is right about the rows that it has learned, and that says little of others."""
    try:
        own = own_data(home, "prediction")
    except InputError:
        # A version's folder alone does not tell its data.
        return
    rows = with_torch("flipguard.releases.trained_on", "prediction", "train").rows_trained_on(said, plan, part, own)
    if rows is None:
        aside("what this run was trained on is not to be had: whether any of these rows are among it is not known.\n")
    elif rows:
        told = f"{rows:,} of {said.rows:,} rows are among those that this run was trained on"
        aside(f"{told}: its figures there say little.\n")
