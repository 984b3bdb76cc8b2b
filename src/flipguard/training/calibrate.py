"""A trained network made as sure of itself as it is right."""

from torch import nn

from flipguard.data import DataSet
from flipguard.ensembles import Tempered
from flipguard.metrics import fit_temperature
from flipguard.training.network import predict_logits
from flipguard.types import InputError


def calibrated(network: nn.Module, data: DataSet, part: str = "validation", *, device: str = "cpu") -> Tempered:
    """The network with its logits divided by the temperature that fits a part of the data best.

    For the members of a guiding ensemble of different architectures (ELODI, Table 8). Use samples that none of them was
    trained on, and not the test part.
    """
    if part == "test":
        raise InputError("a temperature is fitted on validation samples: the test part is for the last word.")
    logits = predict_logits(network, data, part, device=device)
    return Tempered(network, fit_temperature(logits, data.part(part).y.cpu().numpy()))
