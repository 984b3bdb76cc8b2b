"""The recipe of the compatible methods on digits, in its smallest form."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_on_digits(tmp_path: Path) -> None:
    command = [sys.executable, "recipes/compatible.py", "--out", str(tmp_path), "--seeds", "1", "--epochs", "3"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
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
