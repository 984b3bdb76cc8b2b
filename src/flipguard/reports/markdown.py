"""A pull-request comment: the verdict and the headline on sight, the details behind a click."""

from collections.abc import Iterable, Iterator, Sequence

from flipguard.comparison.result import Comparison, Figure, Group, Matrix
from flipguard.reports.wording import (
    NONE,
    class_groups,
    clean,
    confidences,
    flipped,
    p_value,
    percent,
    rule_name,
    slice_groups,
    titles,
    verdict,
    with_interval,
)

# A CI job finds its earlier comment by this line and updates it instead of writing another.
MARKER = "<!-- flipguard comparison -->"
MATRIX_MARKER = "<!-- flipguard matrix -->"
MOST_GROUPS = 20
_LITERAL = frozenset(" -.,;/+=%()?!'→–…")


def code(text: object, most: int = 60) -> str:
    """Text from data, shown as it is: no markup, no HTML, and no mention or reference, which code never makes.

    >>> code("a|b <img> @all")
    '<code>a&#124;b &#60;img&#62; &#64;all</code>'
    """
    plain = clean(text, most)
    escaped = "".join(c if c.isalnum() or c in _LITERAL else f"&#{ord(c)};" for c in plain)
    return f"<code>{escaped}</code>"


def comparison_markdown(comparison: Comparison) -> str:
    return "\n\n".join([MARKER, *_parts(comparison)]) + "\n"


def _parts(comparison: Comparison) -> Iterator[str]:
    gate = comparison.gate
    outcome = {None: "compared", True: "the gate passes", False: "**the gate refuses**"}[gate.passed]
    yield f"### flipguard: {outcome}"
    old, new = titles(comparison)
    yield f"{code(old)} → {code(new)}, {comparison.n:,} samples. {verdict(comparison).replace('<', '&lt;')}"
    if gate.rules:
        rows = [("ok" if r.passed else "**refused**", code(rule_name(r)), code(r.reason, 200)) for r in gate.rules]
        yield table(("", "rule", "reason"), rows)
    yield table(("flips", "rate"), _flips(comparison))
    yield table(("models", "old", "new", "change"), _models(comparison))
    yield f"In brackets: {100 * comparison.confidence:g}% intervals."
    for kind, groups in (("classes", class_groups(comparison)), ("slices", slice_groups(comparison))):
        found = flipped(groups)
        if found:
            first = f", the {MOST_GROUPS} that flip most" if len(found) > MOST_GROUPS else ""
            summary = f"{kind.capitalize()} with negative flips ({len(found):,} of {len(groups):,}{first})"
            yield _details(summary, _groups(found[:MOST_GROUPS]))
    if comparison.worst_flips:
        yield _details("The worst flips", _worst(comparison))
    if comparison.notes:
        yield "\n".join(f"- {code(note, 400)}" for note in comparison.notes)


def _flips(comparison: Comparison) -> Iterator[Sequence[str]]:
    alone = (
        ("negative flip rate", comparison.negative_flip_rate, True),
        ("positive flip rate", comparison.positive_flip_rate, True),
        ("relative NFR", comparison.relative_negative_flip_rate, True),
        ("churn", comparison.churn, True),
        ("weighted NFR", comparison.weighted_negative_flip_rate, True),
        ("flip cost", comparison.flip_cost, False),
        ("NFR above the noise of retraining", comparison.noise.excess if comparison.noise else None, True),
    )
    for name, figure, share in alone:
        if figure is not None:
            yield name, with_interval(figure, share=share)


def _models(comparison: Comparison) -> Iterator[Sequence[str]]:
    pairs: tuple[tuple[str, Figure | None, Figure | None, Figure | None, bool], ...] = (
        ("error rate", comparison.error_rate_old, comparison.error_rate_new, comparison.error_difference, True),
        ("weighted error", comparison.weighted_error_rate_old, comparison.weighted_error_rate_new, None, True),
        ("NLL", comparison.nll_old, comparison.nll_new, comparison.nll_difference, False),
        ("ECE", comparison.ece_old, comparison.ece_new, None, True),
        ("NLL, calibrated", comparison.cnll_old, comparison.cnll_new, None, False),
        ("ECE, calibrated", comparison.cece_old, comparison.cece_new, None, True),
    )
    for name, old, new, change, share in pairs:
        if old is not None or new is not None:
            moved = with_interval(change, share=share, signed=True) if change is not None else ""
            yield name, with_interval(old, share=share), with_interval(new, share=share), moved


def _groups(worst: Iterable[tuple[str, Group]]) -> str:
    rows = (
        (
            code(name, 40),
            f"{group.labelled:,}",
            with_interval(group.negative_flip_rate),
            with_interval(group.error_difference, signed=True),
            p_value(group.adjusted_p).replace("<", "&lt;"),
        )
        for name, group in worst
    )
    return table(("", "n", "NFR", "error change", "adjusted p"), rows)


def _worst(comparison: Comparison) -> str:
    rows = (
        (
            code(flip.id, 40),
            code(NONE if flip.label is None else flip.label, 30),
            f"{code(NONE if flip.old is None else flip.old, 30)} → {code(NONE if flip.new is None else flip.new, 30)}",
            confidences(flip),
        )
        for flip in comparison.worst_flips
    )
    return table(("id", "label", "old → new", "confidence"), rows)


def matrix_markdown(matrix: Matrix) -> str:
    names = [code(name, 30) for name in matrix.versions]
    rows = (
        (
            f"{i + 1} {name}",
            with_interval(matrix.error_rate[i]),
            *(NONE if i == j else percent(figure.value) for j, figure in enumerate(matrix.negative_flip_rate[i])),
        )
        for i, name in enumerate(names)
    )
    header = ("NFR from ↓ to →", "error", *(str(i + 1) for i in range(len(names))))
    line = (
        f"{matrix.sum_negative_flips:,} negative flips over {len(names) - 1} updates of {matrix.n:,} samples "
        f"(mean NFR {percent(matrix.mean_negative_flip_rate)}; over all pairs "
        f"{percent(matrix.mean_pairwise_negative_flip_rate)})."
    )
    notes = ["\n".join(f"- {code(note, 400)}" for note in matrix.notes)] if matrix.notes else []
    return "\n\n".join([MATRIX_MARKER, "### flipguard: versions", line, table(header, rows), *notes]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in GitHub's Markdown."""
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
