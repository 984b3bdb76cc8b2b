"""From a tally to figures with intervals."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flipguard import metrics, statistics
from flipguard.comparison.result import Figure, Figures
from flipguard.metrics import OUTCOMES, RATES, ModelScores, PairScores, Rate, Tally

NEGATIVE, POSITIVE = OUTCOMES.index("negative_flip"), OUTCOMES.index("positive_flip")
LABELLED = 5

Counts = np.ndarray[Any, np.dtype[Any]]


def figure(value: Any, interval: Any = (None, None)) -> Figure | None:
    """None when there is nothing to estimate from."""
    number = _finite(value)
    return None if number is None else Figure(value=number, low=_finite(interval[0]), high=_finite(interval[1]))


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class PairedIntervals:
    """The intervals that are searched for, not computed in one go: for one group, or for all of them as arrays."""

    error_difference: Any
    relative_negative_flip_rate: Any

    @classmethod
    def of(cls, count: Counts, confidence: float) -> "PairedIntervals":
        """count: (…, 7). All groups together take hardly longer than one."""
        labelled = count[..., :LABELLED]
        negative, positive = labelled[..., NEGATIVE], labelled[..., POSITIVE]
        return cls(
            statistics.error_difference(negative, positive, labelled.sum(axis=-1), confidence=confidence),
            statistics.relative_negative_flip_rate(labelled, confidence=confidence),
        )

    def __getitem__(self, group: int) -> "PairedIntervals":
        return PairedIntervals(
            [end[group] for end in self.error_difference], [end[group] for end in self.relative_negative_flip_rate]
        )


def figures(
    tally: Tally,
    *,
    confidence: float,
    clusters: Counts | None = None,
    cost_ratio: float | None = None,
    displacement: bool = True,
    ece_intervals: bool = True,
    paired: PairedIntervals | None = None,
) -> dict[str, Any]:
    """The fields of `Figures` for a tally without groups. `clusters`: (K, 7) counts per cluster, if there are any.

    `paired` holds the intervals of this group where they were computed for all groups at once.
    """
    count = tally.count
    labelled = int(count[:LABELLED].sum())
    found: dict[str, Any] = {
        "n": int(count.sum()),
        "labelled": labelled,
        "negative_flips": int(count[NEGATIVE]),
        "positive_flips": int(count[POSITIVE]),
        "missing_old": int(tally.missing[0]),
        "missing_new": int(tally.missing[1]),
    }
    for name, rate in RATES.items():
        found[name] = rate_figure(count, rate, clusters, confidence)
    if labelled:
        found |= _paired(tally, clusters, confidence, paired)
    if tally.weight is not None:
        found |= _weighted(tally, confidence)
    if cost_ratio is not None and labelled:
        found["flip_cost"] = _flip_cost(tally, cost_ratio, confidence)
    if tally.models is not None:
        found |= _model_figures(tally, tally.models, "", confidence, ece_intervals)
    if tally.calibrated is not None:
        found |= _model_figures(tally, tally.calibrated, "c", confidence, ece_intervals)
    if tally.pair is not None:
        found |= _pair_figures(tally.pair, confidence, displacement)
    return found


def measured(tally: Tally, **options: Any) -> Figures:
    return Figures(**figures(tally, **options))


def rate_figure(count: Counts, rate: Rate, clusters: Counts | None, confidence: float) -> Figure | None:
    successes, trials = count[list(rate.numerator)].sum(), count[list(rate.denominator)].sum()
    if not trials:
        return None
    interval: statistics.Interval
    if clusters is None:
        interval = statistics.clopper_pearson(successes, trials, confidence=confidence)
    else:
        interval = statistics.clustered_rate(
            clusters[:, list(rate.numerator)].sum(axis=1),
            clusters[:, list(rate.denominator)].sum(axis=1),
            at_most=_effective_trials(count, clusters, trials),
            confidence=confidence,
        )
    return figure(successes / trials, interval)


def _effective_trials(count: Counts, clusters: Counts, trials: float) -> float:
    """What `trials` clustered samples are worth, by all outcomes together: few flips alone cannot show clumping."""
    n = count.sum()
    worth = float(statistics.effective_trials(count / n, statistics.clustered_covariance(clusters)))
    return trials * worth / float(n) if math.isfinite(worth) else math.inf


def _paired(tally: Tally, clusters: Counts | None, confidence: float, known: PairedIntervals | None) -> dict[str, Any]:
    """The figures that are functions of the whole multinomial of five."""
    count = tally.count[:LABELLED]
    n, negative, positive = count.sum(), count[NEGATIVE], count[POSITIVE]
    difference = (negative - positive) / n
    relative = metrics.relative_negative_flip_rate(tally)
    # Each sample adds as many errors as models got it wrong: one, both, or none.
    both_wrong = count[POSITIVE + 1 :].sum()
    bound = statistics.combined_shares(negative + positive, both_wrong, n, factors=(1, 2), confidence=confidence)
    found: dict[str, Any] = {"churn_bound": figure(metrics.churn_bound(tally), bound)}
    if clusters is None:
        intervals = known or PairedIntervals.of(count, confidence)
        return found | {
            "error_difference": figure(difference, intervals.error_difference),
            "relative_negative_flip_rate": figure(relative, intervals.relative_negative_flip_rate),
            "mcnemar_p": float(statistics.mcnemar_exact(negative, positive)),
        }
    per_cluster = clusters[:, :LABELLED]
    used = per_cluster[per_cluster.sum(axis=1) > 0]
    covariance, degrees = statistics.clustered_covariance(used), max(len(used) - 1, 0)
    options: dict[str, Any] = {"degrees_of_freedom": degrees, "confidence": confidence}
    return found | {
        "error_difference": figure(
            difference, statistics.error_difference_from_covariance(count / n, covariance, n, **options)
        ),
        "relative_negative_flip_rate": figure(
            relative, statistics.relative_negative_flip_rate_from_covariance(count / n, covariance, n, **options)
        ),
        "mcnemar_p": _clustered_p(count / n, covariance, n, degrees),
    }


def _clustered_p(share: Counts, covariance: Counts, n: int, degrees: int) -> float | None:
    """McNemar's question when samples come in clusters: is the difference 0, by its clustered variance?"""
    slope = np.array([0, 1, -1, 0, 0])
    if share @ slope and statistics.linear_variance(covariance, slope) == 0:
        # All clusters alike: the variance says nothing, and no test is better than a certain one.
        return None
    return _finite(statistics.mcnemar_from_covariance(share, covariance, n, degrees_of_freedom=degrees))


def _weighted(tally: Tally, confidence: float) -> dict[str, Figure | None]:
    assert tally.weight is not None
    assert tally.weight_squared is not None
    found = {}
    for name in ("error_rate_old", "error_rate_new", "negative_flip_rate", "positive_flip_rate"):
        numerator, denominator = list(RATES[name].numerator), list(RATES[name].denominator)
        part, whole = tally.weight[numerator].sum(), tally.weight[denominator].sum()
        if whole > 0:
            interval = statistics.weighted_rate(
                part,
                tally.weight_squared[numerator].sum(),
                whole,
                tally.weight_squared[denominator].sum(),
                confidence=confidence,
            )
            found[f"weighted_{name}"] = figure(part / whole, interval)
    return found


def _flip_cost(tally: Tally, ratio: float, confidence: float) -> Figure | None:
    """ratio · NFR - PFR, with weights at the sample size that unweighted samples would need for as small a variance."""
    weight = (tally.weight if tally.weight is not None else tally.count)[:LABELLED]
    squares = (tally.weight_squared if tally.weight_squared is not None else tally.count)[:LABELLED]
    value = np.array([0.0, ratio, -1.0, 0.0, 0.0])
    total = weight.sum()
    if total <= 0:
        return None
    mean = float(metrics.flip_cost(tally, ratio=ratio))
    distance = (value - mean) ** 2
    one, all_ = float((weight * distance).sum()) / total, float((squares * distance).sum()) / total**2
    # Where every sample has the same value no variance tells, and all weights together do.
    size = one / all_ if all_ > 0 else total**2 / squares.sum()
    worse, better = weight[[NEGATIVE, POSITIVE]] * size / total
    # Where every sample flips, rounding may leave more of them than there are.
    size = max(size, worse + better)
    return figure(mean, statistics.combined_shares(worse, better, size, factors=(ratio, -1), confidence=confidence))


def _mean(
    total: Any, squares: Any, n: Any, confidence: float, *, least: float = -math.inf, most: float = math.inf
) -> Figure | None:
    """A mean with its normal interval, whose ends are values that there can be."""
    if not n:
        return None
    low, high = statistics.mean_interval(total, squares, n, confidence=confidence)
    return figure(total / n, (np.maximum(low, least), np.minimum(high, most)))


def _model_figures(tally: Tally, scores: ModelScores, prefix: str, confidence: float, ece: bool) -> dict[str, Any]:
    """`prefix` is c for the figures after temperature scaling; `ece` says whether calibration errors get intervals."""
    found: dict[str, Any] = {}
    for side, name in enumerate(("old", "new")):
        n, labelled = scores.n[side], scores.labelled[side]
        found[f"{prefix}nll_{name}"] = _mean(
            scores.nll[side], scores.nll_squared[side], labelled, confidence, least=0.0
        )
        value = metrics.FIGURES[f"{prefix}ece_{name}"](tally)
        bins = scores.bins[side]
        found[f"{prefix}ece_{name}"] = figure(
            value,
            statistics.expected_calibration_error_interval(bins, confidence=confidence)
            if ece and labelled
            else (None, None),
        )
        if not prefix:
            found[f"prediction_confidence_{name}"] = _mean(
                scores.confidence[side], scores.confidence_squared[side], n, confidence, least=0.0, most=1.0
            )
            found[f"predictive_entropy_{name}"] = _mean(
                scores.entropy[side], scores.entropy_squared[side], n, confidence, least=0.0
            )
    return found


def _pair_figures(scores: PairScores, confidence: float, displacement: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "surrogate_churn": _mean(
            scores.surrogate_churn, scores.surrogate_churn_squared, scores.n, confidence, least=0.0
        ),
        "nll_difference": _mean(scores.nll_difference, scores.nll_difference_squared, scores.labelled, confidence),
        "flip_rank": [int(number) for number in scores.rank],
    }
    if displacement:
        total, squares, rows = (a.sum() for a in (scores.displacement, scores.displacement_squared, scores.displaced))
        found["logit_displacement"] = _mean(total, squares, rows, confidence, least=0.0)
        by_outcome = {
            name: _mean(
                scores.displacement[i], scores.displacement_squared[i], scores.displaced[i], confidence, least=0.0
            )
            for i, name in enumerate(OUTCOMES)
        }
        found["logit_displacement_by_outcome"] = {k: v for k, v in by_outcome.items() if v is not None}
    return found
