"""One file per paper's idea: a frozen dataclass of hyper-parameters, called with (student, references, batch)."""

from difflib import get_close_matches
from typing import Any

from flipguard.methods import (
    ae_kd,
    bct,
    bu_cr,
    codistillation,
    distillation,
    dropout,
    elodi,
    entropy,
    focal,
    graft,
    latent_be,
    naive,
    none,
    paragon,
    proxy_end2,
    ract,
    stale,
    weight_averages,
)
from flipguard.methods.ae_kd import AdaptiveDistillation
from flipguard.methods.bct import BackwardCompatible
from flipguard.methods.bu_cr import BayesianUpdate
from flipguard.methods.card import Card
from flipguard.methods.codistillation import CoDistillation
from flipguard.methods.distillation import Distillation
from flipguard.methods.dropout import Dropout
from flipguard.methods.elodi import Elodi, Heir, Ldi, LogitDifference
from flipguard.methods.entropy import MinimumEntropy
from flipguard.methods.focal import FocalDistillation
from flipguard.methods.graft import Graft, Scion, Twins
from flipguard.methods.latent_be import BatchEnsembleDistillation, LatentBE
from flipguard.methods.naive import Naive
from flipguard.methods.none import NoTreatment
from flipguard.methods.paragon import Paragon
from flipguard.methods.proxy_end2 import ProxyDirichlet
from flipguard.methods.ract import RegressionAlleviating
from flipguard.methods.stale import StaleCoDistillation
from flipguard.methods.weight_averages import Soup, WeightInterpolation, choose_alpha
from flipguard.types import InputError

METHODS: dict[str, Card] = {
    card.name: card
    for room in (
        none,
        dropout,
        naive,
        entropy,
        distillation,
        focal,
        elodi,
        ae_kd,
        proxy_end2,
        latent_be,
        codistillation,
        stale,
        graft,
        bct,
        ract,
        bu_cr,
        weight_averages,
        paragon,
    )
    for card in room.CARDS
}
"""Every method by name; `.build(**options)` makes one."""


def method_cards() -> list[dict[str, Any]]:
    """What is known of each method, ready for JSON: name, summary, kind, paper, equation, costs, references and
    parameters.

    >>> [card["parameters"]["p"] for card in method_cards() if card["name"] == "dropout"]
    [0.2]
    """
    return [card.as_dict() for card in METHODS.values()]


RECOMMENDED = "recommended"
"""In a training spec, a method that is left to us (`flipguard.releases.chosen`)."""


def build_method(name: str, **options: Any) -> Any:
    """A method by name, with the paper's defaults for what is not given.

    >>> build_method("elodi", alpha=0.9, difference={"k": 10}).difference.k
    10
    """
    if name == RECOMMENDED:
        raise InputError(
            "recommended is chosen by what a version follows, which a training spec says (`flipguard train`): name a "
            "method here."
        )
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise InputError(f"there is no method '{name}'.{hint} Methods: {', '.join(METHODS)}.")
    return METHODS[name].build(**options)


__all__ = [
    "METHODS",
    "AdaptiveDistillation",
    "BackwardCompatible",
    "BatchEnsembleDistillation",
    "BayesianUpdate",
    "Card",
    "CoDistillation",
    "Distillation",
    "Dropout",
    "Elodi",
    "FocalDistillation",
    "Graft",
    "Heir",
    "LatentBE",
    "Ldi",
    "LogitDifference",
    "MinimumEntropy",
    "Naive",
    "NoTreatment",
    "Paragon",
    "ProxyDirichlet",
    "RegressionAlleviating",
    "Scion",
    "Soup",
    "StaleCoDistillation",
    "Twins",
    "WeightInterpolation",
    "build_method",
    "choose_alpha",
    "method_cards",
]
