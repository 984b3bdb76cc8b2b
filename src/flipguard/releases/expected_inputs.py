"""What somebody who has only an exported file must know of its inputs."""

from typing import Any

import torch

from flipguard.data import Encoder, ImageFiles, Split
from flipguard.types import InputError, Normalisation

_IMAGES = "NCHW, the channels red, green and blue where there are three"


def check_inside(split: Split, format: str) -> None:
    """Whether the preprocessing can be part of what is written."""
    if format == "safetensors":
        raise InputError("safetensors holds weights alone: to have the normalisation inside, export a graph.")
    if isinstance(split.x, dict):
        raise InputError("texts are tokenised before the network, and have no normalisation to put inside.")


def expected_inputs(split: Split, normalisation: Normalisation | None, *, inside: bool) -> dict[str, Any]:
    """In words, ready for JSON: `inside` tells whether the network normalises its inputs itself.

    >>> import numpy as np
    >>> rows = Split(torch.zeros(2, 3), torch.tensor([0, 1]), np.arange(2))
    >>> expected_inputs(rows, Normalisation((0.0,) * 3, (1.0,) * 3), inside=False)["values"]
    'features scaled as (x - mean) / std, column by column, with normalisation: the network does not do it'
    """
    if isinstance(split.x, dict):
        values = "what the tokenizer gives, cut and padded to the inputs' length: token ids, and 1 in the mask for each"
        return {"inside": False, "values": values}
    files = split.x if isinstance(split.x, ImageFiles) else None
    images = files is not None or (isinstance(split.x, torch.Tensor) and split.x.dtype == torch.uint8)
    what, how = ("pixels divided by 255", "channel by channel") if images else ("features", "column by column")
    if inside:
        values = f"{what}, with no further scaling: the network normalises them itself"
    elif normalisation is None:
        values = f"{what}, with no further scaling"
    else:
        scaled = f"{what}, then scaled" if images else f"{what} scaled"
        values = f"{scaled} as (x - mean) / std, {how}, with normalisation: the network does not do it"
    found = {"inside": inside, "values": values, **({"layout": _IMAGES} if images else {})}
    if files is not None:
        found["cut"] = f"the shorter side scaled to {files.resize} pixels, then the centre {files.size} by {files.size}"
    return found


def tokenizer_facts(encoder: Encoder | None, name: str) -> dict[str, Any]:
    """Where the tokenizer lies beside a file of that name."""
    return {} if encoder is None else {"tokenizer": f"{name}.tokenizer.json"}
