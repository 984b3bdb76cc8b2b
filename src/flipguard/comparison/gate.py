"""The gate: thresholds that a release must keep, judged on what the data can bear out."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from flipguard import statistics
from flipguard._shares import as_share
from flipguard.comparison.result import Comparison, Figure, Gate, Group, Rule
from flipguard.types import InputError

_Percent = Annotated[str, Field(pattern=r"%\s*$")]


def _or_percent(number: Any) -> BeforeValidator:
    """Also as a text such as 1%, which a schema can tell from any other text."""
    return BeforeValidator(as_share, json_schema_input_type=number | _Percent | None)


Share = Annotated[float | None, Field(ge=0, le=1), _or_percent(Annotated[float, Field(ge=0, le=1)])]
Number = Annotated[float | None, Field(ge=0), _or_percent(Annotated[float, Field(ge=0)])]
Confidence = Annotated[float | None, Field(gt=0, lt=1), _or_percent(Annotated[float, Field(gt=0, lt=1)])]


class GateSettings(BaseModel):
    """The thresholds, as fractions or in percent: 0.01 or "1%". A rule that is not set is not judged.

    Whole-set rules are judged on the upper end of the interval (`gate_on="interval"`): the release must *show* that it
    keeps the limit. Slices are judged on the lower end of their simultaneous interval, and only with at least
    `min_slice` labelled samples: a slice refuses when it is shown to break the limit. On the upper end a slice of 10
    samples without a single flip would refuse any limit below 0.31.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_nfr: Share = None
    max_relative_nfr: Number = None
    max_new_error: Share = None
    max_error_increase: Share = None
    max_churn: Share = None
    max_new_ece: Share = None
    max_noise_excess: Share = None
    max_class_nfr: Share = None
    max_slice_nfr: Share = None
    min_slice: Annotated[int, Field(ge=1)] = 30
    gate_on: Literal["interval", "value"] = "interval"


SHARES = {*(name for name in GateSettings.model_fields if name.startswith("max_")), "confidence"}
"""Settings that may be in percent."""


def gate_settings(given: Mapping[str, Any]) -> GateSettings:
    """Settings from a mapping; what is wrong with it is said in one line."""
    try:
        return GateSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            close = get_close_matches(key, GateSettings.model_fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(GateSettings.model_fields)}."
            raise InputError(f"the gate has no rule '{key}'; {hint}") from error
        raise InputError(f"gate: {key} {expected(first)}") from error


def expected(problem: Any) -> str:
    """What pydantic found wrong with a value, in our words: `must be at most 1, it is 5.`"""
    bounds, value = problem.get("ctx", {}), problem["input"]
    share = problem["loc"][-1] in SHARES
    hint = " Write a share as 0.01 or '1%'." if share else ""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    for name, word in words.items():
        if name in bounds:
            return f"must be {word} {bounds[name]:g}, it is {value}.{hint if name in ('le', 'lt') else ''}"
    if "number" in str(problem["msg"]):
        return f"must be a number, it is {value!r}.{hint}"
    message = str(problem["msg"]).replace("Input should be ", "")
    return f"must be {message}, it is {value!r}."


WHOLE_SET_RULES = {
    "max_nfr": "negative_flip_rate",
    "max_relative_nfr": "relative_negative_flip_rate",
    "max_new_error": "error_rate_new",
    "max_error_increase": "error_difference",
    "max_churn": "churn",
    "max_new_ece": "ece_new",
}
BINOMIAL_RULES = ("max_nfr", "max_new_error", "max_churn")


def judge(comparison: Comparison, settings: GateSettings) -> Gate:
    """The verdict on a comparison."""
    rules: list[Rule] = []
    for name, field in WHOLE_SET_RULES.items():
        limit = getattr(settings, name)
        if limit is not None:
            rules.append(_whole_set_rule(comparison, name, field, limit, settings))
    if settings.max_noise_excess is not None:
        rules.append(_noise_rule(comparison, settings.max_noise_excess, settings))
    for name in ("max_class_nfr", "max_slice_nfr"):
        if getattr(settings, name) is not None and not comparison.labelled:
            raise InputError(f"--{name.replace('_', '-')} needs labels, and the files have none.")
    if settings.max_class_nfr is not None:
        rules.append(_group_rule("max_class_nfr", settings.max_class_nfr, _classes(comparison), settings))
    if settings.max_slice_nfr is not None:
        if not comparison.slices:
            raise InputError("--max-slice-nfr needs slices, and nothing was sliced by: pass --by COLUMN.")
        rules.append(_group_rule("max_slice_nfr", settings.max_slice_nfr, _slices(comparison), settings))
    passed = all(rule.passed for rule in rules) if rules else None
    return Gate(passed=passed, judged_on=settings.gate_on, rules=rules)


def _whole_set_rule(comparison: Comparison, name: str, field: str, limit: float, settings: GateSettings) -> Rule:
    figure: Figure | None = getattr(comparison, field)
    if figure is None or figure.value is None:
        if field == "relative_negative_flip_rate" and comparison.labelled:
            # No new errors, or no old successes: there is nothing that could have flipped.
            return Rule(
                name=name, limit=limit, figure=field, value=None, judged=None, passed=True, reason="nothing to flip"
            )
        needed = "labels, and logits or probabilities of the new model" if field == "ece_new" else "labels"
        raise InputError(f"--{name.replace('_', '-')} needs {needed}, and the files have none.")
    judged = _judged(figure, settings)
    passed = judged is not None and judged <= limit
    enough = None
    trials = comparison.n if field == "churn" else comparison.labelled
    if not passed and name in BINOMIAL_RULES and comparison.cluster is None:
        enough = statistics.samples_for_limit(
            round(figure.value * trials), trials, limit, confidence=comparison.confidence
        )
    return Rule(
        name=name,
        limit=limit,
        figure=field,
        value=figure.value,
        judged=judged,
        passed=passed,
        samples_needed=enough,
        reason=_reason(figure.value, judged, limit, enough, trials),
    )


def _judged(figure: Figure, settings: GateSettings) -> float | None:
    return figure.value if settings.gate_on == "value" else figure.high


def _reason(value: float, judged: float | None, limit: float, needed: int | None, have: int) -> str:
    if judged is not None and judged <= limit:
        most = f"{_percent(value)}, at most {_percent(judged)}," if judged != value else _percent(value)
        return f"{most} is within {_percent(limit)}"
    if value > limit:
        return f"{_percent(value)} exceeds {_percent(limit)}"
    if judged is None:
        return f"the interval has no upper end, so {_percent(limit)} is not shown"
    more = f"; about {needed - have:,} more labelled samples would settle it" if needed and needed > have else ""
    return f"{_percent(value)} keeps {_percent(limit)}, but up to {_percent(judged)} is possible{more}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}%" if value == 0 or abs(value) >= 5e-5 else f"{100 * value:.2g}%"


def _noise_rule(comparison: Comparison, limit: float, settings: GateSettings) -> Rule:
    if comparison.noise is None:
        raise InputError("--max-noise-excess needs --noise with two retrained copies of the old model or more.")
    if comparison.cluster is not None:
        raise InputError(
            "--max-noise-excess takes samples as independent, which --cluster says they are not: drop one."
        )
    if comparison.noise.copies == 1 and settings.gate_on == "interval":
        raise InputError(
            "--max-noise-excess needs two retrained copies or more: one does not tell how much they differ. Add one to "
            "--noise, or pass --gate-on value."
        )
    excess = comparison.noise.excess
    judged = _judged(excess, settings)
    passed = judged is not None and judged <= limit
    return Rule(
        name="max_noise_excess",
        limit=limit,
        figure="noise.excess",
        value=excess.value,
        judged=judged,
        passed=passed,
        reason=_reason(float(excess), judged, limit, None, comparison.labelled),
    )


def _classes(comparison: Comparison) -> Iterator[tuple[str, Group]]:
    for group in comparison.classes:
        yield f"class={group.value}", group


def _slices(comparison: Comparison) -> Iterator[tuple[str, Group]]:
    for column, groups in comparison.slices.items():
        for group in groups:
            yield f"{column}={group.value}", group


def _group_rule(name: str, limit: float, groups: Iterator[tuple[str, Group]], settings: GateSettings) -> Rule:
    """The worst group decides: the one whose judged number is largest among those with enough samples."""
    field = "negative_flip_rate" if settings.gate_on == "value" else "simultaneous_negative_flip_rate"
    worst: tuple[float, str, Group] | None = None
    for label, group in groups:
        figure: Figure | None = getattr(group, field)
        if figure is None or figure.value is None or group.labelled < settings.min_slice:
            continue
        number = figure.value if settings.gate_on == "value" else (figure.low or 0.0)
        if worst is None or number > worst[0]:
            worst = (number, label, group)
    if worst is None:
        reason = f"no group has {settings.min_slice} labelled samples"
        return Rule(name=name, limit=limit, figure=field, value=None, judged=None, passed=True, reason=reason)
    number, label, group = worst
    assert group.negative_flip_rate is not None
    value = float(group.negative_flip_rate)
    passed = number <= limit
    at_least = "" if settings.gate_on == "value" else "at least "
    reason = (
        f"no group is shown to exceed {_percent(limit)}"
        if passed
        else f"{label} flips {at_least}{_percent(number)} (measured {_percent(value)} of {group.labelled:,})"
    )
    return Rule(
        name=name, limit=limit, figure=field, value=value, judged=number, passed=passed, group=label, reason=reason
    )
