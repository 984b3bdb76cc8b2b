"""A release's report card: figures of every earlier version, facts shown as they are and harmless."""

from typing import Any

import pytest

from flipguard.comparison.run import compare
from flipguard.reports.card import release_card
from flipguard.reports.wording import with_interval


def said(*predictions: str, classes: list[str] | None = None) -> dict[str, Any]:
    labels = ["cat", "dog", "emu", "cat", "dog", "emu", "cat"]
    rows: dict[str, Any] = {"id": list(range(7)), "label": labels, "prediction": list(predictions)}
    return rows if classes is None else {**rows, "classes": classes}


FIRST = said("cat", "dog", "dog", "cat", "cat", "cat", "cat", classes=["cat", "dog"])
SECOND = said("cat", "cat", "emu", "cat", "dog", "cat", "cat", classes=["cat", "dog", "emu"])
THIRD = said("cat", "dog", "emu", "dog", "dog", "emu", "cat", classes=["cat", "dog", "emu"])


def test_every_earlier_version_has_its_row() -> None:
    card = release_card("v2", {}, THIRD, {"v0": FIRST, "v1": SECOND})
    assert card.startswith("# Release <code>v2</code>\n\nError rate 14.29%")
    for name, old in (("v0", FIRST), ("v1", SECOND)):
        figures = compare(old, THIRD)
        row = next(line for line in card.splitlines() if line.startswith(f"| <code>{name}</code>"))
        for figure in (figures.error_rate_old, figures.negative_flip_rate, figures.relative_negative_flip_rate):
            assert with_interval(figure) in row
        known = figures.old_classes
        assert ("| – |" in row) == (known is None)
        assert known is None or with_interval(known.negative_flip_rate) in row


def test_the_first_version_has_nothing_to_break() -> None:
    card = release_card("v0", {"classes": ["cat", "dog", "emu"]}, SECOND, {})
    assert "Error rate 28.57%" in card
    assert "This is the first version" in card
    assert "| classes | 3 |" in card
    assert "| earlier version |" not in card


def test_facts_are_shown_and_cannot_break_the_page() -> None:
    facts = {
        "members": 1,
        "model": {"name": "mlp", "options": {"hidden": [32, 16]}},
        "method": {"name": "elodi | <img>", "parameters": {}},
        "seeds": {"initialisation": 3},
        "format": 1,
    }
    card = release_card("v|1", facts, SECOND, {"<b>@all": FIRST})
    assert "# Release <code>v&#124;1</code>" in card
    assert "| model | <code>mlp; options (hidden 32, 16)</code> |" in card
    assert "elodi &#124; &#60;img&#62;" in card
    assert "parameters" not in card
    assert "members" not in card
    assert "| members | <code>3</code> |" in release_card("v", {"members": 3}, SECOND, {})
    assert "format" not in card
    assert "<b>" not in card
    assert "@all" not in card
    widths = {line.count("|") for line in card.splitlines() if line.startswith("| ") and "what" in line}
    assert widths == {3}


def test_versions_over_other_samples_are_refused() -> None:
    other = {**FIRST, "id": list(range(1, 8))}
    with pytest.raises(ValueError, match="only in"):
        release_card("v1", {}, SECOND, {"v0": other})
