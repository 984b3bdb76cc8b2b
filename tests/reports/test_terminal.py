import io
import re

import pytest
from rich.console import Console

import flipguard
from flipguard.comparison import Comparison
from flipguard.reports.terminal import comparison_report, matrix_report, plain_text
from flipguard.reports.wording import percent, verdict


def coloured(comparison: Comparison, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system="standard", highlight=False).print(
        comparison_report(comparison)
    )
    return file.getvalue()


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_it_tells_the_verdict_the_figures_the_places_and_the_gate_in_that_order(comparison: Comparison) -> None:
    text = plain_text(comparison_report(comparison))
    flat = " ".join(text.split())
    assert verdict(comparison) in flat
    flips = comparison.negative_flip_rate
    assert flips is not None
    places = [
        flat.index(part)
        for part in (
            "old → new 997 samples",
            f"negative flip rate {percent(flips.value)} [",
            "noise floor",
            "error rate",
            "NLL",
            "worst classes",
            "worst slices",
            "worst flips",
            "gate: REFUSED 2 of 3 rules broken",
        )
    ]
    assert places == sorted(places)
    assert re.search(r"^gnu +142 ", text, re.MULTILINE)
    assert re.search(r"^country=it ", text, re.MULTILINE)
    worst = comparison.worst_flips[0]
    assert re.search(rf"^{worst.id} +{worst.label} → {worst.new} ", text, re.MULTILINE)
    assert re.search(r"^NO +max_class_nfr 10.00% +class=gnu flips at least", text, re.MULTILINE)
    assert re.search(r"^ok +max_churn 90.00%", text, re.MULTILINE)


@pytest.mark.parametrize("width", [80, 120])
def test_a_row_of_figures_stays_on_one_line(comparison: Comparison, width: int) -> None:
    lines = uncoloured(coloured(comparison, width)).splitlines()
    assert max(map(len, lines)) <= width
    for name, ends in (("error rate", 3), ("NLL", 3), ("ECE", 2), ("negative flip rate", 1)):
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        assert line.count("]") == ends, line


def test_surrogate_churn_beyond_100_percent_says_how_far_it_may_go() -> None:
    said = {"id": [1, 2], "label": [0, 0]}
    old = said | {"logits": [[200.0, 200.0, 200.0, 200.0, 0.0]] * 2}
    new = said | {"logits": [[0.0, 0.0, 0.0, 0.0, 200.0]] * 2}
    comparison = flipguard.compare(old, new, alpha=0.5)
    assert comparison.surrogate_churn is not None
    assert comparison.surrogate_churn.value == pytest.approx(2.5)
    (line,) = (row for row in plain_text(comparison_report(comparison)).splitlines() if row.startswith("surrogate"))
    assert re.fullmatch(r"surrogate churn +250.00% +.*  distance, α = 0.5; up to 50% × classes", line), line


def test_colour_means_harm_gain_or_doubt(comparison: Comparison) -> None:
    text = coloured(comparison, 120)
    assert "\x1b[1;31mREFUSED\x1b[0m" in text
    gnu = next(line for line in text.splitlines() if line.startswith("gnu"))
    assert "\x1b[31m+" in gnu
    error = next(line for line in text.splitlines() if line.startswith("error rate"))
    assert "\x1b[32m-" in error


def test_plain_text_has_no_codes_boxes_or_trailing_space(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    text = plain_text(comparison_report(comparison))
    assert "\x1b" not in text
    assert not re.search("[\u2500-\u257f]", text)
    assert all(line == line.rstrip() for line in text.splitlines())
    assert 80 < max(map(len, text.splitlines())) <= 100


def test_data_is_shown_and_never_obeyed(hostile: Comparison) -> None:
    text = coloured(hostile, 200)
    assert "[bold]x[/bold]" in text
    assert "<script>" in text
    # Every escape code left is one of rich's own: colours, bold and dim.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", uncoloured(text))


def test_files_without_labels_still_make_a_report() -> None:
    ids = list(range(4))
    old, new = ({"id": ids, "prediction": p} for p in ([0, 1, 1, 0], [0, 1, 1, 1]))
    text = plain_text(comparison_report(flipguard.compare(old, new)))
    assert re.search(r"^churn +25.00%", text, re.MULTILINE)
    assert "error rate" not in text
    assert "4 samples, 4 without a label" in text


def test_versions_of_the_same_name_are_told_apart_by_file(comparison: Comparison) -> None:
    same = {"model": "net", "version": "1"}
    files = {side: getattr(comparison, side).model_copy(update=same) for side in ("old", "new")}
    alike = plain_text(comparison_report(comparison.model_copy(update=files)))
    assert alike.startswith("old → new ")
    files["new"] = files["new"].model_copy(update={"version": "2"})
    assert plain_text(comparison_report(comparison.model_copy(update=files))).startswith("net 1 → net 2 ")


def test_the_matrix_reads_from_row_to_column() -> None:
    versions = [{"id": [1, 2, 3], "label": [0, 1, 0], "prediction": p} for p in ([0, 1, 0], [0, 0, 0], [1, 1, 1])]
    text = plain_text(matrix_report(flipguard.matrix(versions)))
    assert text.startswith("3 negative flips over 2 updates of 3 samples (mean NFR 50.00%; over all pairs 55.56%).")
    rows = [line.split() for line in text.splitlines() if re.match(r"\d version", line)]
    assert [row[-3:] for row in rows] == [["–", "33.33%", "66.67%"], ["0.00%", "–", "66.67%"], ["0.00%", "33.33%", "–"]]
