"""The comparison of ensemble distillations on digits, in its smallest form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = ("none", "ae_kd", "latent_be+tdiv_sdiv", "batch_ensemble")


def test_rows_are_measured_and_kept(script: Callable[..., str], tmp_path: Path) -> None:
    def study() -> dict[str, Any]:
        script(
            *("ensemble_distillation", "--data", "digits", "--out", tmp_path),
            *("--members", 2, "--epochs", 4, "--rows", *ROWS),
        )
        record: dict[str, Any] = json.loads((tmp_path / "seed_0.json").read_text())
        return record

    record = study()
    assert list(record["rows"]) == ["teacher", "ensemble", *ROWS]
    assert set(record["seconds"]) == {"teacher_0", "teacher_1", *ROWS}
    assert record["rows"]["teacher"]["negative_flip_rate"] == 0
    for row in record["rows"].values():
        assert row["error_rate_new"] < 0.5
        assert row["cnll_new"] < row["nll_new"] + 0.02
    assert record["rows"]["ensemble"]["error_rate_new"] <= record["rows"]["teacher"]["error_rate_new"]
    again = study()
    assert again["seconds"] == {}
    assert again["rows"] == record["rows"]
