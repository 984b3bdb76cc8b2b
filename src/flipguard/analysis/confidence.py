"""Histograms of entropy and of confidence, and the losses that shape them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flipguard.analysis.members import Members
from flipguard.analysis.plots import Panel, Plot, Series, floats, histogram
from flipguard.metrics.scores import prediction_confidence_per_sample, predictive_entropy_per_sample


def entropy_in_and_out(inside: Mapping[str, Members], outside: Mapping[str, Members]) -> Plot:
    """Predictive entropy on known and on foreign samples, a panel per model: LatentBE (Nam et al. 2022), Fig. 5 to 8.

    Each model's members are averaged as probabilities (Eq. 2).
    """
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for name, members in inside.items():
        edges = np.linspace(0, np.log(members.logits.shape[2]), 26)
        parts = {"in": members, **({"out": outside[name]} if name in outside else {})}
        entropies = {part: _entropy(found) for part, found in parts.items()}
        series = tuple(histogram(part, values, edges) for part, values in entropies.items())
        panels.append(Panel("predictive entropy", "share", series, name))
        facts |= {f"mean, {name}, {part}": float(values.mean()) for part, values in entropies.items()}
    return Plot("entropy", "Predictive entropy in and out of distribution", "LatentBE Fig. 5–8", tuple(panels), facts)


def _entropy(members: Members) -> Any:
    shifted = np.exp(members.logits - members.logits.max(axis=2, keepdims=True))
    mean = (shifted / shifted.sum(axis=2, keepdims=True)).mean(axis=0)
    return predictive_entropy_per_sample(np.log(np.maximum(mean, np.finfo(np.float64).tiny)))


def prediction_confidence(models: Mapping[str, Members]) -> Plot:
    """The gap γ between the two largest probabilities: churn paper (Bhojanapalli et al. 2021), Fig. 2."""
    edges = np.linspace(0, 1, 21)
    gaps = {
        name: np.concatenate([prediction_confidence_per_sample(logits) for logits in members.logits])
        for name, members in models.items()
    }
    series = tuple(histogram(name, values, edges) for name, values in gaps.items())
    facts = {f"mean, {name}": float(values.mean()) for name, values in gaps.items()}
    title = "Confidence of the predictions"
    return Plot("confidence", title, "churn Fig. 2", (Panel("confidence γ", "share", series),), facts)


def regularised_losses(alphas: tuple[float, ...] = (0.0, 0.25, 0.5), taus: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Plot:
    r"""The entropy-regularised loss, and temperature scaling: churn paper (Bhojanapalli et al. 2021), Fig. 4, 5.

    $(1-\alpha)\cdot{-\log p} + \alpha H_{bin}(p)$ over probabilities and over scores, and $-\log\sigma(f/\tau)$.
    """
    p, f = np.linspace(0.001, 0.999, 200), np.linspace(-6, 6, 200)

    def loss(q: Any, alpha: float) -> Any:
        return (1 - alpha) * -np.log(q) + alpha * -(q * np.log(q) + (1 - q) * np.log1p(-q))

    sigma = 1 / (1 + np.exp(-f))
    panels = (
        Panel("probability p", "loss", tuple(Series(f"α = {a:g}", floats(p), floats(loss(p, a))) for a in alphas)),
        Panel("score f", "loss", tuple(Series(f"α = {a:g}", floats(f), floats(loss(sigma, a))) for a in alphas)),
        Panel(
            "score f", "loss", tuple(Series(f"τ = {t:g}", floats(f), floats(np.log1p(np.exp(-f / t)))) for t in taus)
        ),
    )
    return Plot("losses", "Regularised losses in two classes", "churn Fig. 4, 5", panels, {})
