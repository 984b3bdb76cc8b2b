"""The recipe of the compatible methods on digits, in its smallest form."""

import json
from collections.abc import Callable
from pathlib import Path


def test_every_row_on_digits(script: Callable[..., str], tmp_path: Path) -> None:
    printed = script("compatible", "--out", tmp_path, "--seeds", 1, "--epochs", 3)
    (rows,) = json.loads((tmp_path / "compatible.json").read_text())
    trained = ["none", "bct", "ract", "ract contrastive", "bu_cr"]
    rewritten = [f"bu_cr rewritten, {ratio}" for ratio in (2, 5, 10)]
    assert list(rows) == [*trained, *rewritten, "fine-tuned", "weight_interpolation", "soup"]
    assert len(printed.splitlines()) == 2 + len(rows)
    for row in rows.values():
        both, negative, positive, *wrong = row["counts"]
        assert both + negative + positive + sum(wrong) == 539
        assert both > 200
    flips = [rows[row]["counts"][1] for row in ("none", *rewritten)]
    assert flips == sorted(flips, reverse=True)
    assert 0 <= rows["weight_interpolation"]["alpha"] < 1
