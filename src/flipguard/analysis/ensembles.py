"""What becomes of error and flips as ensembles grow, and which samples flip."""

from collections.abc import Mapping, Sequence

import numpy as np

from flipguard.analysis.members import Logits, Members
from flipguard.analysis.plots import Panel, Plot, Series, floats, histogram
from flipguard.metrics.scores import predictive_entropy_per_sample, rank_per_sample
from flipguard.types import InputError

_BINS = 20


def ensemble_size(updates: Mapping[str, tuple[Members, Members]], *, sizes: Sequence[int] = (1, 2, 4)) -> Plot:
    """Error and negative flip rate against the number of members, old and new being ensembles: a curve per update.

    ELODI (Zhao et al. 2024), Fig. 2; PCT (Yan et al. 2021), Fig. 3. Members are dealt into disjoint ensembles; the
    marks span all pairs of an old and a new one. Members of several architectures in turn (`members.mixed`) make the
    heterogeneous ensembles of ELODI's figure.
    """
    errors: list[Series] = []
    flips: list[Series] = []
    facts: dict[str, float] = {}
    for colour, (name, (old, new)) in enumerate(updates.items()):
        wrong = [[members.errors(members.dealt(size)) for size in sizes] for members in (old, new)]
        rates = [(~was[:, None] & now[None]).mean(axis=2) for was, now in zip(*wrong, strict=True)]
        prefix = f"{name}, " if name else ""
        for side, found in zip(("old", "new"), wrong, strict=True):
            means = [each.mean(axis=1) for each in found]
            errors.append(_spanned(f"{prefix}{side}", sizes, means, colour=colour, dashed=side == "old"))
        flips.append(_spanned(f"{prefix}negative flips", sizes, rates, colour=colour))
        for size, rate, now in zip(sizes, rates, wrong[1], strict=True):
            facts[f"{prefix}NFR, {size}×"] = float(rate.mean())
            facts[f"{prefix}spread of NFR, {size}×"] = float(rate.std())
            facts[f"{prefix}error, {size}×"] = float(now.mean())
    return Plot(
        "ensemble-size",
        "Error and flips against the size of the ensembles",
        "ELODI Fig. 2; PCT Fig. 3",
        (
            Panel("members", "error", tuple(errors), x_whole=True),
            Panel("members", "negative flip rate", tuple(flips), x_whole=True),
        ),
        facts,
    )


def _spanned(name: str, x: Sequence[float], values: Sequence[Logits], *, colour: int, dashed: bool = False) -> Series:
    """Means, with the smallest and the largest value of each."""
    mean, low, high = (floats(f(each) for each in values) for f in (np.mean, np.min, np.max))
    return Series(name, floats(x), mean, "line", low, high, colour=colour, dashed=dashed)


def wrong_class_ranks(old: Members, new: Members, *, sizes: Sequence[int] = (1, 4), most: int = 10) -> Plot:
    """Where the new, wrong class of a negative flip stood in the old logits: ELODI (Zhao et al. 2024), Fig. 4."""
    series, facts = [], {}
    for size in sizes:
        ranks = []
        for before, after in zip(old.dealt(size), new.dealt(size), strict=False):
            flipped = ~old.errors(before) & new.errors(after)
            ranks.append(rank_per_sample(before[flipped], after[flipped].argmax(axis=1)))
        found = np.concatenate(ranks)
        share = [float((found == rank).mean()) if len(found) else 0.0 for rank in range(2, most + 1)]
        series.append(Series(f"{size}×", floats(range(2, most + 1)), tuple(share)))
        facts[f"second, {size}×"] = share[0]
        facts[f"flips, {size}×"] = float(len(found))
    return Plot(
        "wrong-class-ranks",
        "Rank of the flips' wrong class in the old model",
        "ELODI Fig. 4",
        (Panel("rank", "share of negative flips", tuple(series)),),
        facts,
    )


def uncertainty_of_flips(old: Members, new: Members, *, treated: Members | None = None) -> Plot:
    """Uncertainty of the samples that flip between two singles, and of all others: PCT (Yan et al. 2021), Fig. 4.

    Pairs are the first old and the first new, the second and the second, and so on. The uncertainty is the entropy of
    the mean prediction of all old and new members but the pair, who have no part in its flips. `treated` are new models
    of a second training, pair by pair: the lower panel sets the number of their flips, at each level of uncertainty,
    against that of `new`.
    """
    pairs = min(len(old.logits), len(new.logits), len(new.logits if treated is None else treated.logits))
    if len(old.logits) + len(new.logits) < 3:
        raise InputError("the uncertainty comes from further members: pass at least two on one side.")
    both = Members((), old.ids, old.label, np.concatenate([old.logits, new.logits]))
    edges = np.linspace(0, np.log(old.logits.shape[2]), _BINS + 1)
    shares: dict[str, list[Logits]] = {"negative flips": [], "other samples": [], "treated": []}
    for pair in range(pairs):
        rest = [i for i in range(len(both.logits)) if i not in (pair, len(old.logits) + pair)]
        entropy = predictive_entropy_per_sample(both.mean_probability_logits(rest))
        right = ~old.errors(old.logits[pair])
        flipped = right & new.errors(new.logits[pair])
        shares["negative flips"].append(entropy[flipped])
        shares["other samples"].append(entropy[~flipped])
        if treated is not None:
            shares["treated"].append(entropy[right & treated.errors(treated.logits[pair])])
    found = {name: np.concatenate(values) for name, values in shares.items() if values}
    facts = {f"mean, {name}": float(values.mean()) for name, values in found.items() if len(values)}
    facts |= {f"flips per pair, {name}": len(found[name]) / pairs for name in found if name != "other samples"}
    upper = tuple(histogram(name, found[name], edges) for name in ("negative flips", "other samples"))
    axis = "entropy of the mean prediction"
    panels = [Panel(axis, "share", upper, "no treatment", y_log=True)]
    if treated is not None:
        counts = {"no treatment": found["negative flips"], "treated": found["treated"]}
        lower = (
            Series(name, floats(edges), floats(np.histogram(values, edges)[0] / pairs), "steps")
            for name, values in counts.items()
        )
        panels.append(Panel(axis, "negative flips per pair", tuple(lower), y_log=True))
    return Plot("uncertainty-of-flips", "Uncertainty of the samples that flip", "PCT Fig. 4", tuple(panels), facts)
