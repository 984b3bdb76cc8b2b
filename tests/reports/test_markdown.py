import re

import flipguard
from flipguard.comparison import Comparison
from flipguard.reports.markdown import MARKER, comparison_markdown, matrix_markdown


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in block.splitlines()] for block in blocks]


def test_it_starts_with_the_marker_and_the_outcome(comparison: Comparison) -> None:
    lines = comparison_markdown(comparison).splitlines()
    assert lines[0] == MARKER
    assert lines[2] == "### flipguard: **the gate refuses**"
    passed = comparison.model_copy(update={"gate": comparison.gate.model_copy(update={"passed": True})})
    assert comparison_markdown(passed).splitlines()[2] == "### flipguard: the gate passes"


def test_details_fold_away_the_classes_slices_and_worst_flips(comparison: Comparison) -> None:
    text = comparison_markdown(comparison)
    summaries = re.findall(r"<summary>(.*?)</summary>", text)
    assert summaries[0].startswith("Classes with negative flips (7 of 7)")
    assert summaries[1].startswith("Slices with negative flips (3 of 3)")
    assert summaries[2] == "The worst flips"
    assert text.count("<details>") == text.count("</details>") == 3
    assert comparison.worst_flips[0].label in text


def test_every_row_of_a_table_has_as_many_cells_as_its_header(comparison: Comparison, hostile: Comparison) -> None:
    for result in (comparison, hostile):
        lines = comparison_markdown(result).splitlines()
        rows = [line for line in lines if line.startswith("|")]
        assert len(rows) > 8
        header = 0
        for before, line in zip(["", *lines], lines, strict=False):
            if line.startswith("|"):
                header = header if before.startswith("|") else line.count("|")
                assert line.count("|") == header, line


def test_hostile_names_make_no_markup(hostile: Comparison) -> None:
    text = comparison_markdown(hostile)
    assert "&#60;script&#62;" in text
    tags = set(re.findall(r"</?[a-z!-]+", text))
    assert tags <= {"<code", "</code", "<details", "</details", "<summary", "</summary", "<!--"}
    # A mention outside of code would notify people.
    assert "@" not in text
    assert "[bold]" not in text
    assert "`" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)


def test_the_matrix_has_a_row_and_a_column_per_version() -> None:
    versions = [{"id": [1, 2, 3], "label": [0, 1, 0], "prediction": p} for p in ([0, 1, 0], [0, 0, 0], [1, 1, 1])]
    (table,) = tables(matrix_markdown(flipguard.matrix(versions)))
    assert [row[2:] for row in table[2:]] == [
        ["–", "33.33%", "66.67%"],
        ["0.00%", "–", "66.67%"],
        ["0.00%", "33.33%", "–"],
    ]
