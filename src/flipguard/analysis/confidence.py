"""Histograms of entropy and of confidence, and the losses that shape them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flipguard.analysis.members import Members
from flipguard.analysis.plots import Panel, Plot, Series, floats, histogram
from flipguard.metrics.scores import prediction_confidence_per_sample, predictive_entropy_per_sample
from flipguard.metrics.separation import auroc

if TYPE_CHECKING:
    from torch import Tensor


def entropy_in_and_out(inside: Mapping[str, Members], outside: Mapping[str, Members]) -> Plot:
    """Predictive entropy on known and on foreign samples, a panel per model: LatentBE (Nam et al. 2022), Fig. 5 to 8.

    Each model's members are averaged as probabilities (Eq. 2). The facts have the mean entropies and how well they tell
    foreign samples from known ones (`metrics.auroc`).
    """
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for name, members in inside.items():
        edges = np.linspace(0, np.log(members.logits.shape[2]), 26)
        parts = {"in": members, **({"out": outside[name]} if name in outside else {})}
        entropies = {
            part: predictive_entropy_per_sample(found.mean_probability_logits()) for part, found in parts.items()
        }
        series = tuple(histogram(part, values, edges) for part, values in entropies.items())
        panels.append(Panel("predictive entropy", "share", series, name))
        facts |= {f"mean, {name}, {part}": float(values.mean()) for part, values in entropies.items()}
        if "out" in entropies:
            facts[f"AUROC, {name}"] = auroc(entropies["in"], entropies["out"])
    return Plot("entropy", "Predictive entropy in and out of distribution", "LatentBE Fig. 5–8", tuple(panels), facts)


def prediction_confidence(models: Mapping[str, Members]) -> Plot:
    """The gap γ between the two largest probabilities: churn paper (Bhojanapalli et al. 2021), Fig. 2, left."""
    edges = np.linspace(0, 1, 21)
    gaps = {
        name: np.concatenate([prediction_confidence_per_sample(logits) for logits in members.logits])
        for name, members in models.items()
    }
    series = tuple(histogram(name, values, edges) for name, values in gaps.items())
    facts = {f"mean, {name}": float(values.mean()) for name, values in gaps.items()}
    title = "Confidence of the predictions"
    return Plot("confidence", title, "churn Fig. 2", (Panel("confidence γ", "share", series, y_log=True),), facts)


def regularised_losses(alphas: Sequence[float] = (0.0, 0.25, 0.5), taus: Sequence[float] = (1.0, 2.0, 4.0)) -> Plot:
    r"""The entropy-regularised loss, and temperature scaling: churn paper (Bhojanapalli et al. 2021), Fig. 4, 5.

    $(1-\alpha)\cdot{-\log p} + \alpha H_{bin}(p)$ over probabilities and over scores, and $-\log\sigma(f/\tau)$: the
    losses that the methods train by, on the logits of two classes.
    """
    import torch

    p, f = torch.linspace(0.001, 0.999, 200), torch.linspace(-6, 6, 200)
    by_p = torch.stack([p.log(), torch.log1p(-p)], dim=1)
    by_f = torch.stack([f, torch.zeros_like(f)], dim=1)
    panels = (
        Panel("probability p", "loss", tuple(Series(f"α = {a:g}", floats(p), _regularised(by_p, a)) for a in alphas)),
        Panel("score f", "loss", tuple(Series(f"α = {a:g}", floats(f), _regularised(by_f, a)) for a in alphas)),
        Panel("score f", "loss", tuple(Series(f"τ = {t:g}", floats(f), _regularised(by_f / t, 0.0)) for t in taus)),
    )
    return Plot("losses", "Regularised losses in two classes", "churn Fig. 4, 5", panels, {})


def _regularised(logits: "Tensor", alpha: float) -> tuple[float, ...]:
    """(1 - α)·CE towards the first class + α·H: logits (B, 2) -> B numbers."""
    import torch

    from flipguard.losses import cross_entropy, prediction_entropy

    first = torch.zeros(len(logits), dtype=torch.int64)
    return floats((1 - alpha) * cross_entropy(logits, first) + alpha * prediction_entropy(logits))
