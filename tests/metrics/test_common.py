"""Every figure crossed with every invariance, on rows with all that can be missing."""

import math
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.metrics import FIGURES, OUTCOMES, Tally, figures, flip_cost, score_rows, tally

N, C, GROUPS = 211, 7, 5
TEMPERATURE = (1.3, 0.7)
ALPHA = 1.7
ALL: dict[str, Any] = {**FIGURES, "flip_cost": lambda t: flip_cost(t, ratio=3.0)}

torch.set_num_threads(1)


@dataclass(frozen=True)
class Data:
    """Rows in one kind of array: labels and predictions with gaps, weights, logits with rows that are nan."""

    label: Any
    old: Any
    new: Any
    weight: Any
    old_logits: Any
    new_logits: Any
    group: Any

    def map(self, function: Any) -> "Data":
        return Data(**{name: function(value) for name, value in vars(self).items()})

    def tally(self, *, grouped: bool = False) -> Tally:
        return tally(
            self.label,
            self.old,
            self.new,
            weight=self.weight,
            old_logits=self.old_logits,
            new_logits=self.new_logits,
            alpha=ALPHA,
            temperature=TEMPERATURE,
            group=self.group if grouped else None,
            groups=GROUPS if grouped else None,
        )


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(11)
    label = rng.integers(0, C, N)
    common = rng.normal(size=(N, C)) + 2.0 * np.eye(C)[label]
    logits = [common + rng.normal(size=(N, C)) for _ in range(2)]
    old, new = (each.argmax(1) for each in logits)
    label[rng.random(N) < 0.1] = -1
    label[rng.random(N) < 0.05] = C + 1  # a class that no model knows
    for predictions, each in zip((old, new), logits, strict=True):
        gone = rng.random(N) < 0.1
        predictions[gone] = -1
        each[gone, rng.integers(0, C, gone.sum())] = np.nan
    return Data(label, old, new, rng.gamma(2.0, size=N), *logits, rng.integers(0, GROUPS, N))


def probabilities(z: list[float], tau: float = 1.0) -> list[float]:
    powers = [math.exp(value / tau) for value in z]
    return [power / sum(powers) for power in powers]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def naive_model(data: Data, which: str, tau: float) -> dict[str, float]:
    logits = data.old_logits if which == "old" else data.new_logits
    nll, confidence, entropy, bins = [], [], [], {}
    for y, row in zip(data.label.tolist(), logits.tolist(), strict=True):
        if any(math.isnan(z) for z in row):
            continue
        p = probabilities(row, tau)
        ranked = sorted(p, reverse=True)
        confidence.append(ranked[0] - ranked[1])
        entropy.append(-sum(q * math.log(q) for q in p))
        if 0 <= y < C:
            nll.append(-math.log(p[y]))
            bins.setdefault(math.ceil(ranked[0] * 15), []).append((p.index(ranked[0]) == y, ranked[0]))
    gaps = [abs(sum(right for right, _ in rows) - sum(p for _, p in rows)) for rows in bins.values()]
    return {
        "nll": mean(nll),
        "ece": sum(gaps) / len(nll),
        "prediction_confidence": mean(confidence),
        "predictive_entropy": mean(entropy),
    }


def naive_pair(data: Data) -> dict[str, Any]:
    churn, moved, ranks = [], [[] for _ in OUTCOMES], []
    for y, o, n, zo, zn in zip(*(getattr(data, f).tolist() for f in NAIVE_ROWS), strict=True):
        if any(math.isnan(z) for z in zo + zn):
            continue
        po, pn = probabilities(zo), probabilities(zn)
        pairs = [((a / max(po)) ** ALPHA, (b / max(pn)) ** ALPHA) for a, b in zip(po, pn, strict=True)]
        churn.append(0.5 * sum(abs(a - b) for a, b in pairs))
        outcome = naive_outcome(y, o, n)
        moved[OUTCOMES.index(outcome)].append(math.dist(zo, zn))
        if outcome == "negative_flip" and n >= 0:
            ranks.append(sorted(zo, reverse=True).index(zo[n]) + 1)
    histogram = [ranks.count(r) for r in range(1, 11)] + [sum(r > 10 for r in ranks)]
    return {
        "surrogate_churn": mean(churn),
        "logit_displacement": mean([distance for rows in moved for distance in rows]),
        "logit_displacement_by_outcome": [mean(rows) for rows in moved],
        "flip_rank": [count / len(ranks) for count in histogram],
    }


NAIVE_ROWS = ("label", "old", "new", "old_logits", "new_logits")


def naive_outcome(y: int, o: int, n: int) -> str:
    if y < 0:
        return "unlabelled_same" if o == n else "unlabelled_different"
    if o == y:
        return "both_right" if n == y else "negative_flip"
    if n == y:
        return "positive_flip"
    return "both_wrong_same" if o == n else "both_wrong_different"


def naive_rates(data: Data) -> dict[str, float]:
    rows = list(zip(*(getattr(data, f).tolist() for f in ("label", "old", "new", "weight")), strict=True))
    labelled = [(y, o, n, w) for y, o, n, w in rows if y >= 0]
    weight = sum(w for *_, w in labelled)
    er_old = mean([o != y for y, o, _, _ in labelled])
    er_new = mean([n != y for y, _, n, _ in labelled])
    nfr = mean([o == y != n for y, o, n, _ in labelled])
    pfr = mean([n == y != o for y, o, n, _ in labelled])
    weighted_nfr = sum(w for y, o, n, w in labelled if o == y != n) / weight
    weighted_pfr = sum(w for y, o, n, w in labelled if n == y != o) / weight
    return {
        "error_rate_old": er_old,
        "error_rate_new": er_new,
        "negative_flip_rate": nfr,
        "positive_flip_rate": pfr,
        "relative_negative_flip_rate": nfr / ((1 - er_old) * er_new),
        "churn": mean([o != n for _, o, n, _ in rows]),
        "churn_correct": mean([o != n for y, o, n, _ in labelled if o == y]),
        "churn_incorrect": mean([o != n for y, o, n, _ in labelled if o != y]),
        "churn_bound": er_old + er_new,
        "negative_flip_impact": nfr / er_new,
        "backward_trust_compatibility": mean([n == y for y, o, n, _ in labelled if o == y]),
        "backward_error_compatibility": mean([o != y for y, o, n, _ in labelled if n != y]),
        "weighted_error_rate_old": sum(w for y, o, _, w in labelled if o != y) / weight,
        "weighted_error_rate_new": sum(w for y, _, n, w in labelled if n != y) / weight,
        "weighted_negative_flip_rate": weighted_nfr,
        "weighted_positive_flip_rate": weighted_pfr,
        "flip_cost": 3.0 * weighted_nfr - weighted_pfr,
    }


@pytest.fixture(scope="module")
def naive(data: Data) -> dict[str, Any]:
    found = {**naive_rates(data), **naive_pair(data)}
    for which, tau in zip(("old", "new"), TEMPERATURE, strict=True):
        plain, calibrated = naive_model(data, which, 1.0), naive_model(data, which, tau)
        found.update({f"{name}_{which}": value for name, value in plain.items()})
        found.update({f"c{name}_{which}": calibrated[name] for name in ("nll", "ece")})
    return found


def close(one: Any, other: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=rtol, equal_nan=True)


def test_the_data_holds_every_outcome_and_every_gap(data: Data) -> None:
    t = data.tally()
    assert (t.count > 2).all()
    assert (t.missing > 2).all()
    assert t.models is not None
    assert t.pair is not None
    assert (t.models.n < N).all()
    assert (t.models.labelled < t.models.n).all()
    assert t.pair.n < t.models.n.min()
    assert (t.pair.rank > 0).sum() > 2


@pytest.mark.parametrize("name", ALL)
def test_equals_a_plain_loop(name: str, data: Data, naive: dict[str, Any]) -> None:
    close(ALL[name](data.tally()), naive[name])


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_rows_does_not_matter(name: str, data: Data) -> None:
    order = np.random.default_rng(3).permutation(N)
    close(ALL[name](data.map(lambda a: a[order]).tally()), ALL[name](data.tally()))


@pytest.mark.parametrize("name", ALL)
def test_batches_add_up(name: str, data: Data) -> None:
    cuts = [0, 53, 53, 60, 149, N]
    parts = [data.map(lambda a, s=start, e=stop: a[s:e]).tally() for start, stop in pairwise(cuts)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    np.testing.assert_array_equal(whole.count, data.tally().count)
    close(ALL[name](whole), ALL[name](data.tally()))


@pytest.mark.parametrize("name", ALL)
def test_a_group_is_the_tally_of_its_rows(name: str, data: Data) -> None:
    grouped = data.tally(grouped=True)
    by_group = ALL[name](grouped)
    assert by_group.shape[0] == GROUPS
    for group in range(GROUPS):
        alone = ALL[name](data.map(lambda a, g=group: a[data.group == g]).tally())
        close(by_group[group], alone)
        close(ALL[name](grouped[group]), alone)
    close(ALL[name](grouped.total()), ALL[name](data.tally()))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("grouped", [False, True])
def test_torch_equals_numpy(name: str, grouped: bool, data: Data) -> None:
    found = ALL[name](data.map(torch.from_numpy).tally(grouped=grouped))
    assert isinstance(found, torch.Tensor)
    close(found.numpy(), ALL[name](data.tally(grouped=grouped)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float16, 2e-2), (np.float32, 1e-5)])
def test_shorter_floats_come_near(name: str, dtype: type, rtol: float, data: Data) -> None:
    short = replace(data, old_logits=data.old_logits.astype(dtype), new_logits=data.new_logits.astype(dtype))
    exact = replace(
        data, old_logits=short.old_logits.astype(np.float64), new_logits=short.new_logits.astype(np.float64)
    )
    close(ALL[name](short.tally()), ALL[name](exact.tally()), rtol=1e-5)
    close(ALL[name](short.tally()), ALL[name](data.tally()), rtol=rtol)


@pytest.mark.parametrize("name", ALL)
def test_the_names_of_classes_do_not_matter(name: str, data: Data) -> None:
    order = np.random.default_rng(5).permutation(C)
    code = np.append(np.argsort(order), [C + 2, C + 1, -1])  # the new code of each class; -1 stays
    renamed = replace(
        data,
        label=code[data.label],
        old=code[data.old],
        new=code[data.new],
        old_logits=data.old_logits[:, order],
        new_logits=data.new_logits[:, order],
    )
    close(ALL[name](renamed.tally()), ALL[name](data.tally()))


@pytest.mark.parametrize("name", [name for name in ALL if "displacement" not in name])
def test_a_constant_added_to_all_logits_of_a_row_changes_nothing(name: str, data: Data) -> None:
    row = np.random.default_rng(7).normal(size=(N, 1)) * 10
    moved = replace(data, old_logits=data.old_logits + row, new_logits=data.new_logits - row)
    close(ALL[name](moved.tally()), ALL[name](data.tally()), rtol=1e-9)


@pytest.mark.parametrize(
    "name", [name for name in ALL if name.endswith("_old") and name not in ("cnll_old", "cece_old")]
)
def test_swapping_the_models_swaps_their_figures(name: str, data: Data) -> None:
    swapped = replace(data, old=data.new, new=data.old, old_logits=data.new_logits, new_logits=data.old_logits)
    twin = name.removesuffix("_old") + "_new"
    close(ALL[name](swapped.tally()), ALL[twin](data.tally()))
    assert not np.isclose(ALL[name](data.tally()), ALL[twin](data.tally()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_no_rows_give_nan_without_a_warning(name: str, data: Data) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ALL[name](data.map(lambda a: a[:0]).tally())
    assert np.isnan(found).all()


def test_figures_are_all_that_the_parts_allow(data: Data) -> None:
    t = data.tally()
    assert figures(t).keys() == FIGURES.keys()
    assert set(figures(tally(data.label, data.old, data.new))) == {
        name for name in naive_rates(data) if not name.startswith("weighted") and name != "flip_cost"
    }


def rows_of(data: Data) -> Any:
    return score_rows(
        data.label,
        data.old,
        data.new,
        old_logits=data.old_logits,
        new_logits=data.new_logits,
        alpha=ALPHA,
        temperature=TEMPERATURE,
    )


@pytest.mark.parametrize("part", ["models", "calibrated"])
@pytest.mark.parametrize("model", [0, 1])
def test_sums_of_a_model_are_those_of_its_rows(part: str, model: int, data: Data) -> None:
    rows, sums = getattr(rows_of(data), part), getattr(data.tally(), part)
    columns = {name: value[:, model].tolist() for name, value in vars(rows).items()}
    scored = [row for row in range(N) if columns["scored"][row]]
    labelled = [row for row in scored if 0 <= data.label[row] < C]
    assert [sums.n[model], sums.labelled[model]] == [len(scored), len(labelled)]
    for name, entering in (("nll", labelled), ("confidence", scored), ("entropy", scored)):
        values = [columns[name][row] for row in entering]
        close(getattr(sums, name)[model], sum(values))
        close(getattr(sums, f"{name}_squared")[model], sum(value**2 for value in values))
    bins = np.zeros((15, 5))
    for row in labelled:
        p, right = columns["top_probability"][row], columns["correct"][row]
        bins[math.ceil(15 * p) - 1] += [1, right, p, p**2, p * right]
    close(sums.bins[model], bins)


def test_sums_of_the_pair_are_those_of_its_rows(data: Data) -> None:
    rows, pair = rows_of(data), data.tally().pair
    assert pair is not None
    scored = ~np.isnan(data.old_logits + data.new_logits).any(1)
    labelled = scored & (data.label >= 0) & (data.label < C)
    loss = [nll_of(each, data.label) for each in (data.old_logits, data.new_logits)]
    difference = [new - old for old, new in zip(*loss, strict=True)]
    assert [pair.n, pair.labelled] == [scored.sum(), labelled.sum()]
    close(pair.nll_difference, sum(difference[row] for row in np.flatnonzero(labelled)))
    close(pair.nll_difference_squared, sum(difference[row] ** 2 for row in np.flatnonzero(labelled)))
    close(pair.surrogate_churn_squared, sum(value**2 for value in rows.surrogate_churn[scored]))
    for code in range(len(OUTCOMES)):
        moved = rows.displacement[scored & (rows.outcome == code)]
        assert pair.displaced[code] == len(moved)
        close(pair.displacement_squared[code], sum(value**2 for value in moved))
    assert pair.rank.sum() == (rows.rank > 0).sum()


def nll_of(logits: np.ndarray, label: np.ndarray) -> list[float]:
    return [
        -math.log(probabilities(row)[y]) if 0 <= y < C else math.nan
        for row, y in zip(logits.tolist(), label.tolist(), strict=True)
    ]
