"""The gate, rule by rule."""

from typing import Any

import numpy as np
import pytest

from flipguard import GateSettings, InputError, compare
from flipguard.comparison.result import Gate, Rule
from flipguard.statistics import clopper_pearson


def pair(
    right: int = 0, negative: int = 0, positive: int = 0, same: int = 0, different: int = 0, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Files with so many samples of each outcome, in three classes."""
    outcomes = [(0, 0)] * right + [(0, 1)] * negative + [(1, 0)] * positive + [(1, 1)] * same + [(1, 2)] * different
    old, new = (list(side) for side in zip(*outcomes, strict=True))
    base = {"id": list(range(len(outcomes))), "label": [0] * len(outcomes)}
    return {**base, "prediction": old}, {**base, "prediction": new, **more}


def gate_of(sources: tuple[Any, Any], **settings: Any) -> Gate:
    options = {k: settings.pop(k) for k in ("noise", "cluster", "by", "confidence") if k in settings}
    return compare(*sources, gate=settings, **options).gate


def rule_of(sources: tuple[Any, Any], **settings: Any) -> Rule:
    gate = gate_of(sources, **settings)
    assert len(gate.rules) == 1
    assert gate.passed == gate.rules[0].passed
    return gate.rules[0]


def test_without_rules_there_is_no_verdict() -> None:
    gate = compare(*pair(right=5)).gate
    assert (gate.passed, gate.rules) == (None, [])


BASE = {"right": 900, "negative": 20, "positive": 30, "same": 40, "different": 11}
VALUES = {
    "max_nfr": 20 / 1001,
    "max_new_error": 71 / 1001,
    "max_churn": 61 / 1001,
    "max_error_increase": -10 / 1001,
    "max_relative_nfr": (20 / 1001) / ((920 / 1001) * (71 / 1001)),
}


@pytest.mark.parametrize("name", VALUES)
def test_rules_hold_the_upper_end_or_the_value_against_the_limit(name: str) -> None:
    sources = pair(**BASE)
    found = rule_of(sources, **{name: 1.0})
    assert found.passed
    assert found.value == pytest.approx(VALUES[name])
    high = getattr(compare(*sources), found.figure).high
    assert found.judged == high > found.value
    assert rule_of(sources, **{name: high}).passed
    just_below = high - 1e-9
    if just_below >= 0:
        refused = rule_of(sources, **{name: just_below})
        assert not refused.passed
        assert "is possible" in refused.reason
    on_value = rule_of(sources, **{name: max(0.0, VALUES[name]) + 1e-9}, gate_on="value")
    assert on_value.passed
    assert on_value.judged == pytest.approx(VALUES[name])
    if VALUES[name] > 0:
        over = rule_of(sources, **{name: VALUES[name] - 1e-9}, gate_on="value")
        assert not over.passed
        assert "exceeds" in over.reason


def test_the_calibration_error_has_a_rule(naive: Any) -> None:
    old, new = naive.scored_pair(rows=211)
    high = compare(old, new).ece_new.high  # type: ignore[union-attr]
    assert rule_of((old, new), max_new_ece=high).passed
    assert not rule_of((old, new), max_new_ece=high - 1e-6).passed


@pytest.mark.parametrize(("name", "count"), [("max_nfr", 20), ("max_new_error", 71), ("max_churn", 61)])
def test_the_samples_asked_for_would_settle_it(name: str, count: int) -> None:
    """At so many samples and the same rate the upper end is within the limit; at one in a hundred fewer it is not."""
    limit = count / 1001 * 1.1
    needed = rule_of(pair(**BASE), **{name: limit}).samples_needed
    assert needed is not None
    assert needed > 1001

    def upper(samples: float) -> float:
        return float(clopper_pearson(count / 1001 * samples, samples).high)

    assert upper(needed) <= limit
    assert upper(needed * 0.99) > limit
    times = -(-needed // 1001)
    larger = pair(**{kind: number * times for kind, number in BASE.items()})
    assert rule_of(larger, **{name: limit}).passed


def test_what_more_samples_cannot_settle_asks_for_none() -> None:
    assert rule_of(pair(**BASE), max_nfr=0.01).samples_needed is None
    assert rule_of(pair(**BASE), max_nfr=0.5).samples_needed is None


def test_churn_counts_samples_without_labels_towards_what_is_needed() -> None:
    old, new = pair(right=95, negative=6)
    for columns in (old, new):
        columns["label"] = [None if i < 50 else 0 for i in range(101)]
    rule = rule_of((old, new), max_churn=0.1)
    assert rule.samples_needed is not None
    assert f"about {rule.samples_needed - 101:,} more" in rule.reason


def test_nothing_can_flip_without_errors() -> None:
    rule = rule_of(pair(right=20, positive=3), max_relative_nfr=0.0)
    assert rule.passed
    assert rule.reason == "nothing to flip"


SLICES = ["many"] * 200 + ["few"] * 20


def sliced(many: int, few: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """So many negative flips among 200 samples of one slice, and among 20 of another."""
    old, new = pair(right=220)
    new["prediction"] = [1 if i < many or 200 <= i < 200 + few else 0 for i in range(220)]
    return old, {**new, "device": SLICES}


def test_a_slice_is_judged_at_the_lower_end_of_its_widened_interval() -> None:
    sources = sliced(many=30, few=0)
    low = next(g for g in compare(*sources).slices["device"] if g.value == "many").simultaneous_negative_flip_rate.low  # type: ignore
    assert low == pytest.approx(float(clopper_pearson(30, 200, confidence=0.975).low))
    kept = rule_of(sources, max_slice_nfr=low)
    assert kept.passed
    refused = rule_of(sources, max_slice_nfr=low - 1e-9)
    assert not refused.passed
    assert (refused.group, refused.value, refused.judged) == ("device=many", 0.15, pytest.approx(low))
    assert "device=many flips at least" in refused.reason


def test_a_small_slice_without_flips_does_not_refuse() -> None:
    assert rule_of(sliced(many=0, few=0), max_slice_nfr=0.01, min_slice=1).passed


def test_slices_below_the_smallest_size_are_not_judged() -> None:
    sources = sliced(many=0, few=20)
    assert rule_of(sources, max_slice_nfr=0.3).passed
    assert rule_of(sources, max_slice_nfr=0.3, min_slice=20).group == "device=few"
    assert not rule_of(sources, max_slice_nfr=0.3, min_slice=20).passed
    none = rule_of(sources, max_slice_nfr=0.3, min_slice=500)
    assert (none.passed, none.judged, none.reason) == (True, None, "no group has 500 labelled samples")


def test_slices_on_their_value() -> None:
    assert rule_of(sliced(many=30, few=0), max_slice_nfr=0.15, gate_on="value").passed
    assert not rule_of(sliced(many=30, few=0), max_slice_nfr=0.149, gate_on="value").passed


def test_classes_have_a_rule_of_their_own() -> None:
    old, new = sliced(many=0, few=20)
    for columns in (old, new):
        columns["label"] = [0] * 200 + [1] * 20
    old["prediction"] = [0] * 200 + [1] * 20
    new["prediction"] = [0] * 220
    assert not rule_of((old, new), max_class_nfr=0.3, min_slice=20).passed
    assert rule_of((old, new), max_class_nfr=0.3, min_slice=20).group == "class=1"
    assert rule_of((old, new), max_class_nfr=0.9, min_slice=20).passed


def test_a_comparison_prints_its_figures_and_the_verdict_with_the_rules_that_broke() -> None:
    old, new = pair(**BASE)
    found = compare(old, new, gate={"max_nfr": 0.0, "max_churn": 1.0})
    first, *lines = str(found).splitlines()
    assert first.startswith(f"old → new: {found.n:,} samples, negative flips {found.negative_flips:,},")
    said = dict(line.split(maxsplit=1) for line in lines)
    assert said["negative_flip_rate"] == str(found.negative_flip_rate)
    assert said["mcnemar_p"] == f"{found.mcnemar_p:.4g}"
    assert said["gate"] == "refused: max_nfr"
    assert "gate" not in str(compare(old, new))
    assert str(compare(old, new, gate={"max_churn": 1.0})).endswith("passed")


def test_the_excess_over_noise_has_a_rule() -> None:
    old, new = pair(**BASE)
    copies = [pair(**{**BASE, "negative": 10, "right": 910})[1] for _ in range(3)]
    excess = compare(old, new, noise=copies).noise.excess  # type: ignore[union-attr]
    assert rule_of((old, new), noise=copies, max_noise_excess=excess.high).passed
    assert not rule_of((old, new), noise=copies, max_noise_excess=excess.high - 1e-9).passed
    assert rule_of((old, new), noise=copies, max_noise_excess=excess.value + 1e-9, gate_on="value").passed


def test_one_rule_that_fails_fails_the_gate() -> None:
    gate = gate_of(pair(**BASE), max_nfr=0.5, max_new_error=0.001, max_churn=0.5)
    assert gate.passed is False
    assert [rule.passed for rule in gate.rules] == [True, False, True]


UNLABELLED = tuple({"id": [1, 2, 3], "prediction": [0, 1, 0], "device": ["a", "b", "a"]} for _ in range(2))


@pytest.mark.parametrize(
    "name", ["max_nfr", "max_relative_nfr", "max_new_error", "max_error_increase", "max_class_nfr", "max_slice_nfr"]
)
def test_rules_that_need_labels_say_so(name: str) -> None:
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} needs labels, and the files have none"):
        gate_of(UNLABELLED, **{name: 0.1})  # type: ignore[arg-type]


def test_rules_that_need_something_else_say_so() -> None:
    with pytest.raises(InputError, match="--max-new-ece needs labels, and logits or probabilities"):
        gate_of(pair(**BASE), max_new_ece=0.1)
    with pytest.raises(InputError, match="--max-slice-nfr needs slices"):
        gate_of(pair(**BASE), max_slice_nfr=0.1)
    with pytest.raises(InputError, match="--max-noise-excess needs --noise"):
        gate_of(pair(**BASE), max_noise_excess=0.1)
    assert gate_of(UNLABELLED, max_churn=1.0).passed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_nfr": -0.1},
        {"max_churn": 1.5},
        {"max_nfr": float("nan")},
        {"min_slice": 0},
        {"gate_on": "x"},
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"gate: {next(iter(settings))} must be ") as caught:
        compare(*pair(right=5), gate=settings)
    assert "\n" not in str(caught.value)


def test_a_misspelt_rule_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no rule 'max_nrf'; did you mean 'max_nfr'"):
        compare(*pair(right=5), gate={"max_nrf": 0.1})


def test_settings_as_an_object() -> None:
    assert compare(*pair(right=500), gate=GateSettings(max_nfr=0.1)).gate.passed


def test_clusters_widen_what_is_judged() -> None:
    sources = pair(**BASE)
    # Forty samples in a row belong together: all flips lie with one customer.
    sources[1]["customer"] = (np.arange(1001) // 40).tolist()
    alone = rule_of(sources, max_nfr=0.5, by=[])
    together = rule_of(sources, max_nfr=0.5, by=[], cluster="customer")
    assert together.judged > alone.judged  # type: ignore[operator]
    assert rule_of(sources, max_nfr=0.021, by=[], cluster="customer").samples_needed is None
