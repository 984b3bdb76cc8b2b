import pytest

import flipguard
from flipguard.comparison import Comparison, Figure
from flipguard.reports.wording import clean, flipped, hit_hardest, interval, percent, shown_worse, slice_groups, verdict


def compared(*outcomes: tuple[int, str]) -> Comparison:
    """A comparison with given numbers of "++", "+-", "-+", "--": old right or wrong, new right or wrong."""
    kinds = [kind for count, kind in outcomes for _ in range(count)]
    label = [0] * len(kinds)
    old = [0 if kind[0] == "+" else 1 for kind in kinds]
    new = [0 if kind[1] == "+" else 1 for kind in kinds]
    ids = list(range(len(kinds)))
    return flipguard.compare(
        {"id": ids, "label": label, "prediction": old}, {"id": ids, "label": label, "prediction": new}
    )


def test_the_verdict_tells_flips_over_all_samples_and_the_error() -> None:
    said = verdict(compared((700, "++"), (20, "+-"), (130, "-+"), (150, "--")))
    assert said == (
        "2.00% of all samples were right and are now wrong (20 of 1,000); 13.00% went the other way. "
        "The error fell from 28.00% to 17.00% (significant, p < 0.001)."
    )


def test_the_verdict_says_when_a_rise_is_not_significant_and_what_would_settle_it() -> None:
    comparison = compared((90, "++"), (6, "+-"), (3, "-+"), (1, "--"))
    said = verdict(comparison)
    assert "The error rose from 4.00% to 7.00% (not significant, p = 0.508" in said
    assert f"about {comparison.samples_to_significance:,} samples would settle it" in said


def test_the_verdict_without_a_flip_still_says_what_is_possible() -> None:
    said = verdict(compared((95, "++"), (5, "--")))
    # 1 - 0.025 ** (1 / 100), the exact upper end for 0 of 100.
    assert said.startswith("No sample that was right is now wrong (0 of 100), though up to 3.62% is possible")
    assert said.endswith("The error stayed at 5.00%.")


def test_the_verdict_without_labels_speaks_of_change_only() -> None:
    ids = list(range(4))
    old, new = ({"id": ids, "prediction": p} for p in ([0, 1, 1, 0], [0, 1, 1, 1]))
    assert verdict(flipguard.compare(old, new)).startswith("25.00% of the predictions changed; without labels")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("a\tb\r\nc", "a b c"),
        ("\u202eabc\u200b\x00", "abc"),
        ("é 中 🦊", "é 中 🦊"),
        ("\udcff", ""),
    ],
)
def test_clean_leaves_nothing_that_a_terminal_obeys(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_clean_keeps_both_ends_of_a_long_name() -> None:
    short = clean("start" + "x" * 500 + "end", 21)
    assert len(short) == 21
    assert short.startswith("start")
    assert short.endswith("end")


@pytest.mark.parametrize(("value", "expected"), [(0.00001, "0.001%"), (1e-7, "0.00001%"), (1, "100.00%"), (None, "–")])
def test_small_shares_do_not_read_as_zero(value: float | None, expected: str) -> None:
    assert percent(value) == expected


def test_an_interval_narrower_than_its_decimals_keeps_them() -> None:
    assert interval(Figure(value=0.272, low=0.2719, high=0.2724)) == "[27.19, 27.24]"
    assert interval(Figure(value=0.272, low=0.25, high=0.3)) == "[25.0, 30.0]"
    assert interval(Figure(value=0.1, low=None, high=None)) == ""


def test_only_groups_that_flip_more_or_err_more_are_hit(comparison: Comparison) -> None:
    groups = slice_groups(comparison)
    hit = [name for name, _ in hit_hardest(groups, comparison, 9)]
    assert hit == ["country=it"]
    assert len(flipped(groups)) == 3
    assert hit_hardest(groups, comparison, 0) == []


def test_a_class_is_shown_worse_only_if_its_error_rose_significantly(comparison: Comparison) -> None:
    by_name = {group.value: group for group in comparison.classes}
    assert shown_worse(by_name["gnu"], 0.95) is True
    assert shown_worse(by_name["gnu"].model_copy(update={"adjusted_p": 0.2}), 0.95) is None
    assert shown_worse(by_name["ant"], 0.95) is False
