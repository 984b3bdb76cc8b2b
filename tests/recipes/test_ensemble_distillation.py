"""The comparison of ensemble distillations on digits, in its smallest form."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS = ("none", "ae_kd", "latent_be+tdiv_sdiv", "batch_ensemble")


def study(out: Path) -> dict[str, Any]:
    command = [sys.executable, "recipes/ensemble_distillation.py", "--data", "digits", "--out", str(out)]
    command += ["--members", "2", "--epochs", "4", "--rows", *ROWS]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    record: dict[str, Any] = json.loads((out / "seed_0.json").read_text())
    return record


def test_rows_are_measured_and_kept(tmp_path: Path) -> None:
    record = study(tmp_path)
    assert list(record["rows"]) == ["teacher", "ensemble", *ROWS]
    assert set(record["seconds"]) == {"teacher_0", "teacher_1", *ROWS}
    assert record["rows"]["teacher"]["negative_flip_rate"] == 0
    for row in record["rows"].values():
        assert row["error_rate_new"] < 0.5
        assert row["cnll_new"] < row["nll_new"] + 0.02
    assert record["rows"]["ensemble"]["error_rate_new"] <= record["rows"]["teacher"]["error_rate_new"]
    again = study(tmp_path)
    assert again["seconds"] == {}
    assert again["rows"] == record["rows"]
