"""`flipguard export RUN`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import check_outputs, say
from flipguard.cli.own_data import own_data

EPILOG = """Examples:

  flipguard export runs/digits_update --format onnx --out model.onnx

  flipguard export runs/digits_update --version old --format safetensors --out old.safetensors"""


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the folder of one of its versions.")],
    format: Annotated[
        Literal["safetensors", "onnx", "torchscript", "torch-export"],
        typer.Option(help="Weights alone, or the graph too."),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where to write it: a .safetensors, .onnx, .pt or .pt2 file.")
    ],
    version: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the last one.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE…|SPEC", help="The data to check it on. Default: the run's own."),
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Samples of the test part to check it on.")] = 256,
    normalisation_inside: Annotated[
        bool,
        typer.Option("--normalisation-inside", help="Let the graph normalise: it then takes pixels from 0 to 1."),
    ] = False,
    trust: o.Trust = False,
    debug: o.Debug = False,
) -> int:
    """Write a release's plain network for other programs, and check that it says what the run says.

    FILE.json beside it tells the classes, and what the inputs must be; a tokenizer is written beside it, too. Exit
    status: 0 done, 2 bad input.
    """
    check_outputs({"--out": out}, [])
    room = with_torch("flipguard.releases.export", "the export", "train")
    release, split, said = _found(run, version, data, trust=trust)
    found = room.export_release(
        release, split, format=format, path=out, said=said, rows=rows, normalisation_inside=normalisation_inside
    )
    from flipguard.reports.wording import clean

    say(
        f"{clean(found.path, 200)}: {clean(release.name)} as {found.format}; the same class on {found.rows:,} "
        f"samples, the largest difference of a logit {found.largest_difference:.2g}.\n"
    )
    return 0


def _found(run: str, version: str | None, data: list[str] | None, *, trust: bool) -> tuple[Any, Any, Any]:
    """The release, the test samples, and what the run said of them, unless other data was named."""
    from flipguard.predictions import read_predictions
    from flipguard.releases.folder import version_home

    releases = with_torch("flipguard.releases.release", "the export", "train")
    material = with_torch("flipguard.releases.material", "the export", "train")
    home = version_home(Path(run), version)
    plan = import_module("flipguard.spec.training").read_data_plan(data) if data else own_data(home, "the export")
    said = None if data else read_predictions(home / "predictions" / "test.parquet")
    release = releases.load_release(run, version, trust=trust)
    return release, material.load(plan, encoder=release.encoder).part("test"), said
