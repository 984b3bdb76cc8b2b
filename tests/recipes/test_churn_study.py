"""The churn study on digits, in its smallest form."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def study(out: Path, *options: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "recipes/churn_study.py", "--out", str(out), "--processes", "1", *options]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return printed, json.loads((out / "churn_study.json").read_text())


def test_what_is_held_decides_who_disagrees(tmp_path: Path) -> None:
    printed, record = study(tmp_path, "--runs", "2", "--epochs", "1", "--tables", "causes")
    churn = {row: values["churn"] for row, values in record["rows"].items()}
    assert len(churn) == 12
    assert all(len(pairs) == 1 for pairs in churn.values())
    # On a CPU nothing is left when all is held.
    still = {"held: initialisation, order, augment", "no augmentation, held: initialisation, order"}
    assert {row for row, pairs in churn.items() if not any(pairs)} == still
    assert "| held: nothing | " in printed
    assert printed.count("\n") == 14
    # What is there is not trained again, and gives the same figures.
    again, second = study(tmp_path, "--runs", "2", "--epochs", "1", "--tables", "causes")
    assert again == printed
    assert set(second["seconds"].values()) == {0.0}


def test_remedies_and_weight_decay(tmp_path: Path) -> None:
    stronger = '{"codistill_skl": {"beta": 0.5}}'
    tables = ("--tables", "methods", "decay", "--options", stronger)
    _, record = study(tmp_path, "--runs", "2", "--epochs", "2", *tables)
    plain = [
        *("none", "2-ensemble", "entropy", "skl", "codistill_ce", "codistill_skl", "codistill_skl+entropy"),
        *("codistill_l1", "ensemble_kd", "codistill_skl, held: initialisation"),
    ]
    assert list(record["rows"]) == [*plain, *(f"{row}, no weight decay" for row in plain)]
    for values in record["rows"].values():
        assert values["accuracy"][0] > 50
        assert 0 < values["churn"][0] < 50
        assert values["surrogate churn"][0] > 0
    used = {row: method["options"] for row, method in record["methods"].items()}
    assert used["codistill_skl"] == used["codistill_skl, held: initialisation, no weight decay"] == {"beta": 0.5}
    assert used["codistill_skl+entropy"] == {"beta": 0.01, "regulariser": "entropy", "alpha": 0.1}
    assert used["ensemble_kd"] == {"temperature": 3.0}
