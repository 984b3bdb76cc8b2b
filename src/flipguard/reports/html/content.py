"""The words and the tables of the page: what is said before anything is drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flipguard.comparison.result import Comparison, Figure, Group, Noise
from flipguard.reports.wording import (
    NONE,
    class_groups,
    clean,
    interval,
    is_significant,
    number,
    p_value,
    percent,
    said_p,
    shown_worse,
    slice_groups,
    with_interval,
)

HARM, GAIN, UNSURE = "harm", "gain", "unsure"


@dataclass(frozen=True)
class Tile:
    """A figure at the head of the page."""

    name: str
    value: str
    interval: str
    meaning: str
    tone: str = ""


@dataclass(frozen=True)
class Bar:
    """An interval as a picture: places in percent of the widest one shown, and of all samples' rate."""

    low: float
    value: float
    high: float
    whole: float


@dataclass(frozen=True)
class GroupRow:
    """A class or slice in its table; `key` is what the flip browser filters by."""

    name: str
    key: str
    samples: str
    flips: str
    rate: str
    together: str
    bar: Bar | None
    error: str
    change: str
    adjusted_p: str
    tone: str
    said: str


def headline(comparison: Comparison) -> tuple[str, str]:
    """The gate in a word, and its tone."""
    passed = comparison.gate.passed
    if passed is None:
        return "Compared, no gate set", ""
    return ("The gate passes", GAIN) if passed else ("The gate refuses", HARM)


def noise_sentence(noise: Noise | None) -> str:
    """The flips against those that retraining alone causes, in plain words."""
    if noise is None:
        return ""
    copies = f"{noise.copies} retrained {'copy' if noise.copies == 1 else 'copies'}"
    floor = f"Retraining the old model alone flips {percent(noise.negative_flip_rate.value)} ({copies})"
    excess = noise.excess
    points = percent(abs(float(excess)), unit=" points")
    if noise.p is None:
        more = f"{points} more" if float(excess) > 0 else f"{points} fewer" if float(excess) < 0 else "as much"
        return f"{floor}: this update flips {more}, which one copy cannot tell from one more retraining."
    if noise.exceeds:
        return f"{floor}: this update flips {points} more than that ({said_p(noise.p)})."
    if excess.high is not None and excess.high < 0:
        return f"{floor}: this update flips {points} fewer than that."
    return f"{floor}: this update is not shown to flip more than that ({said_p(noise.p)})."


def tiles(comparison: Comparison) -> Iterator[Tile]:
    rate = comparison.negative_flip_rate
    if rate is not None:
        count = f"{comparison.negative_flips:,} of {comparison.labelled:,}: were right, are now wrong"
        yield Tile("Negative flip rate", percent(rate.value), interval(rate), count, HARM if rate.value else "")
    old, new, change = comparison.error_rate_old, comparison.error_rate_new, comparison.error_difference
    if old is not None and new is not None:
        tone = "" if not is_significant(comparison) else HARM if float(new) > float(old) else GAIN
        said = f"change {with_interval(change, signed=True)}"
        yield Tile("Error", f"{percent(old.value)} → {percent(new.value)}", "", said, tone)
    if comparison.noise is not None:
        floor = comparison.noise.negative_flip_rate
        excess = f"this update: {percent(comparison.noise.excess.value, signed=True, unit=' points')}"
        tone = HARM if comparison.noise.exceeds else ""
        yield Tile("Noise floor", percent(floor.value), interval(floor), excess, tone)
    yield from _quiet_tiles(comparison)


def _quiet_tiles(comparison: Comparison) -> Iterator[Tile]:
    rows: tuple[tuple[str, Figure | None, bool, str], ...] = (
        ("Positive flip rate", comparison.positive_flip_rate, True, "were wrong, are now right"),
        ("Relative NFR", comparison.relative_negative_flip_rate, True, "100% = as independent models"),
        ("Churn", comparison.churn, True, "predictions that changed at all"),
        ("Flip cost", comparison.flip_cost, False, f"a flip costs {comparison.cost_ratio or 0:g} gains"),
    )
    for name, figure, share, meaning in rows:
        if figure is not None:
            value = percent(figure.value) if share else number(figure.value)
            yield Tile(name, value, interval(figure, share=share), meaning)


def model_rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Each model's own scores, and the paired change where one is known."""
    rows = (
        ("Error", "error_rate", comparison.error_difference, True),
        ("NLL", "nll", comparison.nll_difference, False),
        ("NLL, after temperature scaling", "cnll", None, False),
        ("ECE", "ece", None, True),
        ("ECE, after temperature scaling", "cece", None, True),
        ("Confidence (gap of the two largest)", "prediction_confidence", None, True),
        ("Entropy", "predictive_entropy", None, False),
    )
    found = []
    for name, field, change, share in rows:
        old, new = (getattr(comparison, f"{field}_{side}") for side in ("old", "new"))
        if old is not None or new is not None:
            sides = (with_interval(figure, share=share) for figure in (old, new))
            found.append((name, *sides, with_interval(change, share=share, signed=True) if change else NONE))
    return found  # type: ignore[return-value]


def class_rows(comparison: Comparison, shown: Sequence[str]) -> list[GroupRow]:
    """`shown` are the classes of the flip browser: a row leads to their flips by number, never by a name from data."""
    code = {name: f"label:{i}" for i, name in enumerate(shown)}
    groups = class_groups(comparison)
    return _group_rows(comparison, [(name, code.get(str(group.value), ""), group) for name, group in groups])


def slice_rows(comparison: Comparison, shown: Sequence[Sequence[str]]) -> list[GroupRow]:
    """All columns' slices in one table, as they are adjusted together; `shown` as above, by column."""
    codes = [{value: f"slice:{place}:{i}" for i, value in enumerate(values)} for place, values in enumerate(shown)]
    keys = [
        code.get(str(group.value), "") if group.value is not None else ""
        for code, groups in zip(codes, comparison.slices.values(), strict=True)
        for group in groups
    ]
    named = [(name, key, group) for (name, group), key in zip(slice_groups(comparison), keys, strict=True)]
    return _group_rows(comparison, sorted(named, key=lambda item: _harm(item[2])))


def _harm(group: Group) -> tuple[float, float]:
    rate = group.negative_flip_rate
    return (0.0, 0.0) if rate is None else (-(rate.low or 0.0), -float(rate))


def _group_rows(comparison: Comparison, named: Sequence[tuple[str, str, Group]]) -> list[GroupRow]:
    ends = [g.negative_flip_rate.high for _, _, g in named if g.negative_flip_rate and g.negative_flip_rate.high]
    top = max(ends, default=1.0)
    whole = float(comparison.negative_flip_rate or 0.0)
    return [_group_row(name, key, group, comparison.confidence, top, whole) for name, key, group in named]


def _group_row(name: str, key: str, group: Group, confidence: float, top: float, whole: float) -> GroupRow:
    worse = shown_worse(group, confidence)
    rate, change = group.negative_flip_rate, group.error_difference
    better = worse is False and group.adjusted_p is not None and group.adjusted_p <= 1 - confidence
    tone, said = (
        (HARM, "worse")
        if worse
        else (UNSURE, "unsure")
        if worse is None
        else (GAIN, "better")
        if better and group.positive_flips > group.negative_flips
        else ("", "")
    )
    return GroupRow(
        name=clean(name),
        key=key if group.negative_flips else "",
        samples=f"{group.labelled:,}",
        flips=f"{group.negative_flips:,}",
        rate=with_interval(rate),
        together=interval(group.simultaneous_negative_flip_rate),
        bar=_bar(rate, top, whole),
        error=f"{_value(group.error_rate_old)} → {_value(group.error_rate_new)}",
        change=percent(None if change is None else change.value, signed=True),
        adjusted_p=p_value(group.adjusted_p),
        tone=tone,
        said=said,
    )


def _bar(rate: Figure | None, top: float, whole: float) -> Bar | None:
    if rate is None or rate.low is None or rate.high is None or top <= 0:
        return None
    low, value, high, mean = (round(100 * end / top, 2) for end in (rate.low, float(rate), rate.high, whole))
    return Bar(low, value, high, mean)


def _value(figure: Figure | None) -> str:
    return percent(None if figure is None else figure.value)
