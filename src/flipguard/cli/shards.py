"""`flipguard shards FOLDER --out FOLDER`."""

from pathlib import Path
from typing import Annotated

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import say
from flipguard.types import InputError

EPILOG = """Examples:

  flipguard shards imagenet --out imagenet_shards

  flipguard shards imagenet --short 320 --out imagenet_320"""


def shards(
    images: Annotated[str, typer.Argument(metavar="FOLDER", help="train/CLASS/… and val/CLASS/…, or shards.")],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where the shards go.")],
    short: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Make training images smaller whose shorter side is longer than this."),
    ] = None,
    quality: Annotated[int, typer.Option(help="Of the JPEGs that are made smaller.")] = 90,
    per_shard: Annotated[int, typer.Option("--per-shard", help="Images in a shard.")] = 5000,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes. Default: one for each core.", min=0)
    ] = None,
    debug: o.Debug = False,
) -> int:
    """Pack images into WebDataset shards, smaller if wanted, so that training reads and decodes them faster.

    Ids stay as they are, but for the extension, and dots become underscores. Images to judge by, and those that are
    small enough, stay byte for byte, but GIF and TIFF become JPEG. The same command goes on where it stopped.

    Exit status: 0 done, 2 bad input.
    """
    packing = with_torch("flipguard.data.packing", "packing images", "train")
    how = packing.Packing(short, quality, per_shard)
    if Path(out).resolve().is_relative_to(Path(images).resolve()):
        raise InputError(f"--out {out} lies in {images}: write the shards somewhere else.")
    found = packing.pack(
        packing.images_in(Path(images)),
        Path(out),
        how,
        workers=workers,
        on_shard=lambda done, total, name: say(f"{done:,} of {total:,}  {name}\n"),
    )
    from flipguard.reports.wording import clean

    say(f"{found.images:,} images in {found.shards:,} shards, {found.bytes / 1e9:.2f} GB. Use them by\n")
    say(f"data: {{name: webdataset, folder: {clean(out, 200)}}}\n")
    return 0
