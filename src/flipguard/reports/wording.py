"""How figures, names and the verdict read, the same in every report."""

import re

from flipguard.comparison.result import Comparison, Figure, FlippedSample, Group, Rule

# CSI sequences (colours, cursor), OSC sequences (titles, links), and two-character escapes.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|\x1b[@-Z\\-_]", re.DOTALL)
NONE = "–"


def clean(text: object, most: int = 60) -> str:
    """Text from data, safe to print: escape sequences and control characters removed, one line, at most `most` long.

    >>> clean("red\\x1b[31m alert\\r\\n[bold]")
    'red alert [bold]'
    """
    plain = re.sub(r"\s+", " ", _ESCAPES.sub("", str(text)))
    plain = "".join(c for c in plain if c.isprintable()).strip()
    if len(plain) <= most:
        return plain
    head = (most - 1) // 2
    return f"{plain[:head]}…{plain[len(plain) - (most - 1 - head) :]}"


def percent(value: float | None, *, signed: bool = False, unit: str = "%") -> str:
    """A fraction in percent, with two decimals, or two digits where it is smaller than those could show.

    >>> percent(0.0213), percent(-0.109, signed=True), percent(0.0000012), percent(0.0)
    ('2.13%', '-10.90%', '0.00012%', '0.00%')
    """
    if value is None:
        return NONE
    scaled = 100 * value
    sign = "+" if signed and scaled > 0 else ""
    if scaled and abs(scaled) < 0.005:
        digits = f"{scaled:.2g}"
        return f"{sign}{f'{scaled:.12f}'.rstrip('0') if 'e' in digits and abs(scaled) > 1e-9 else digits}{unit}"
    return f"{sign}{scaled:.2f}{unit}"


def number(value: float | None, *, signed: bool = False) -> str:
    """A figure that is no share: three decimals.

    >>> number(0.18249), number(0.5, signed=True), number(None)
    ('0.182', '+0.500', '–')
    """
    if value is None:
        return NONE
    return f"{value:+.3f}" if signed else f"{value:.3f}"


def interval(figure: Figure | None, *, share: bool = True, signed: bool = False) -> str:
    """The interval alone, in the figure's unit; empty where there is none. Ends above 10% need no second decimal.

    >>> interval(Figure(value=0.02, low=0.0113, high=0.1234))
    '[1.13, 12.3]'
    >>> interval(Figure(value=2.0, low=1.5, high=None), share=False)
    '[1.500, ∞)'
    """
    if figure is None or figure.low is None:
        return ""
    wide = figure.high is not None and figure.high - figure.low >= 0.005

    def end(value: float) -> str:
        if not share:
            return number(value, signed=signed)
        if wide and abs(value) >= 0.1:
            return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
        return percent(value, signed=signed, unit="")

    return f"[{end(figure.low)}, {end(figure.high)}]" if figure.high is not None else f"[{end(figure.low)}, ∞)"


def with_interval(figure: Figure | None, *, share: bool = True, signed: bool = False) -> str:
    """`2.13% [1.30, 3.24]`."""
    if figure is None:
        return NONE
    value = percent(figure.value, signed=signed) if share else number(figure.value, signed=signed)
    return f"{value} {interval(figure, share=share, signed=signed)}".rstrip()


def p_value(p: float | None) -> str:
    """
    >>> p_value(0.00001), p_value(0.0312), p_value(None)
    ('<0.001', '0.031', '–')
    """
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def said_p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def titles(comparison: Comparison) -> tuple[str, str]:
    """Each side's model and version where its file tells them; the files' names where that does not set them apart."""
    names = [" ".join(filter(None, (side.model, side.version))) for side in (comparison.old, comparison.new)]
    if not all(names) or names[0] == names[1]:
        names = [comparison.old.name, comparison.new.name]
    return clean(names[0]), clean(names[1])


def is_significant(comparison: Comparison) -> bool:
    return comparison.mcnemar_p is not None and comparison.mcnemar_p <= 1 - comparison.confidence


def verdict(comparison: Comparison) -> str:
    """What happened, in one or two sentences of plain words."""
    if not comparison.labelled:
        changed = percent(float(comparison.churn)) if comparison.churn is not None else "none"
        return f"{changed} of the predictions changed; without labels nothing says whether for better or worse."
    flips = comparison.negative_flip_rate
    assert flips is not None
    of = f"{comparison.negative_flips:,} of {comparison.labelled:,}"
    if comparison.negative_flips == 0:
        found = f"No sample that was right is now wrong (0 of {comparison.labelled:,})"
        if flips.high is not None:
            found += f", though up to {percent(flips.high)} is possible"
    else:
        found = f"{percent(flips.value)} of all samples were right and are now wrong ({of})"
    gained = percent(float(comparison.positive_flip_rate)) if comparison.positive_flip_rate is not None else NONE
    return f"{found}; {gained} went the other way. {_error_sentence(comparison)}"


def _error_sentence(comparison: Comparison) -> str:
    old, new = comparison.error_rate_old, comparison.error_rate_new
    assert old is not None
    assert new is not None
    if comparison.negative_flips == comparison.positive_flips:
        return f"The error stayed at {percent(new.value)}."
    direction = "rose" if float(new) > float(old) else "fell"
    sentence = f"The error {direction} from {percent(old.value)} to {percent(new.value)}"
    if comparison.mcnemar_p is None:
        return f"{sentence}."
    p = said_p(comparison.mcnemar_p)
    if is_significant(comparison):
        return f"{sentence} (significant, {p})."
    needed = comparison.samples_to_significance
    more = f"; about {needed:,} samples would settle it" if needed else ""
    return f"{sentence} (not significant, {p}{more})."


def outcome_counts(comparison: Comparison) -> dict[str, int]:
    """How many samples of each kind, from the rates: the counts behind them are whole numbers.

    >>> from flipguard import compare
    >>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
    >>> outcome_counts(compare(old, {**old, "prediction": [0, 1, 0, 0]}))
    {'stayed right': 2, 'negative flips': 1, 'positive flips': 1, 'stayed wrong': 0}
    """
    wrong_old = round(comparison.labelled * float(comparison.error_rate_old or 0.0))
    negative, positive = comparison.negative_flips, comparison.positive_flips
    return {
        "stayed right": comparison.labelled - wrong_old - negative,
        "negative flips": negative,
        "positive flips": positive,
        "stayed wrong": wrong_old - positive,
    }


def rule_name(rule: Rule) -> str:
    """
    >>> rule_name(Rule(name="max_nfr", limit=0.01, figure="", value=0, judged=0, passed=True, reason=""))
    'max_nfr 1.00%'
    """
    return f"{rule.name} {percent(rule.limit)}"


Named = tuple[str, Group]


def flipped(groups: list[Named]) -> list[Named]:
    """The groups with a negative flip, first those that flip most as far as the data bear it out."""
    found = [(name, group) for name, group in groups if group.negative_flips and group.negative_flip_rate]
    return sorted(found, key=lambda item: _harm(item[1]))


def hit_hardest(groups: list[Named], comparison: Comparison, most: int) -> list[Named]:
    """Of those the few that matter: they flip more than all samples do, or their error rose."""
    whole = float(comparison.negative_flip_rate or 0.0)
    return [
        (name, group)
        for name, group in flipped(groups)
        if float(group.negative_flip_rate or 0.0) > whole or group.negative_flips > group.positive_flips
    ][:most]


def _harm(group: Group) -> tuple[float, float]:
    rate = group.negative_flip_rate
    assert rate is not None
    return (-(rate.low or 0.0), -float(rate))


def class_groups(comparison: Comparison) -> list[Named]:
    return [(NONE if g.value is None else g.value, g) for g in comparison.classes]


def slice_groups(comparison: Comparison) -> list[Named]:
    return [
        (f"{column}={'(none)' if g.value is None else g.value}", g)
        for column, groups in comparison.slices.items()
        for g in groups
    ]


def shown_worse(group: Group, confidence: float) -> bool | None:
    """True: the error rose, significantly among all groups. None: it rose, unsurely. False: it did not rise."""
    if group.negative_flips <= group.positive_flips:
        return False
    return True if group.adjusted_p is not None and group.adjusted_p <= 1 - confidence else None


def confidences(flip: FlippedSample) -> str:
    if flip.old_confidence is None and flip.new_confidence is None:
        return ""
    return f"{_confidence(flip.old_confidence)} → {_confidence(flip.new_confidence)}"


def _confidence(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
