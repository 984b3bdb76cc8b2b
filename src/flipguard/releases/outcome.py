"""What a run comes to: every later version against every earlier one, and the gate's verdict on the last update."""

import json
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from flipguard.comparison import Comparison, GateSettings, Matrix, compare, matrix
from flipguard.predictions import Predictions, read_predictions
from flipguard.releases.folder import EARLIER, MODEL, PREDICTIONS, RunFolder, write_json

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    `comparisons` are pairs of (older, newer), the last update last; `found` says that everything was there already.
    With several seeds each has an outcome of its own under `runs`.
    """

    folder: Path
    versions: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    matrix: Matrix | None = None
    found: bool = False
    notes: tuple[str, ...] = ()
    runs: "tuple[Outcome, ...]" = field(default=())

    @property
    def passed(self) -> bool | None:
        """The gate's verdict; None without a gate. Of several runs, every one must pass."""
        if self.runs:
            verdicts = [run.passed for run in self.runs]
            return None if None in verdicts else all(verdicts)
        return self.comparisons[-1].gate.passed if self.comparisons else None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        if self.runs:
            return {"folder": str(self.folder), "runs": [run.as_dict() for run in self.runs]}
        return {
            "folder": str(self.folder),
            "versions": list(self.versions),
            "finished_before": self.found,
            "notes": list(self.notes),
            "comparisons": [json.loads(comparison.model_dump_json()) for comparison in self.comparisons],
            "matrix": None if self.matrix is None else json.loads(self.matrix.model_dump_json()),
        }


def conclude(folder: RunFolder, names: list[str], gate: GateSettings | None, *, found: bool) -> Outcome:
    """Compare what the versions said of the test part, and write comparison.json and, for a chain, matrix.json."""
    there = [name for name in names if _test_file(folder, name).exists()]
    missing = (name for name in names if name not in there)
    notes = [f"'{name}' has no predictions on the test part, so it is not compared." for name in missing]
    notes += [
        f"'{after}' is '{before}' to the bit, as happens where data, network, method and seed are the same: is it an "
        "update?"
        for before, after in pairwise(names)
        if _same_weights(folder.version(before) / MODEL, folder.version(after) / MODEL)
    ]
    last = len(there) - 1
    compared = []
    for new in range(1, len(there)):
        *before, after = _said_of(folder, there[: new + 1])
        for old, one in enumerate(before):
            judged = gate if old == new - 1 and new == last else None
            compared.append(compare(one, after, gate=judged, on_missing=_missing(one, after)))
    said = _said_of(folder, there)
    chain = matrix(said, on_missing=_missing(*said)) if len(said) > 2 else None
    write_json(folder.path / "comparison.json", [json.loads(one.model_dump_json()) for one in compared])
    if chain is not None:
        write_json(folder.path / "matrix.json", json.loads(chain.model_dump_json()))
    return Outcome(folder.path, tuple(names), tuple(compared), chain, found, tuple(notes))


def _same_weights(one: Path, other: Path) -> bool:
    """Whether two safetensors files hold the same bytes behind their headers, which tell of more than weights."""
    if not (one.exists() and other.exists()):
        return False
    with one.open("rb") as mine, other.open("rb") as theirs:
        sizes = []
        for file in (mine, theirs):
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            sizes.append(os.fstat(file.fileno()).st_size - file.tell())
        if sizes[0] != sizes[1]:
            return False
        while block := mine.read(_BLOCK):
            if block != theirs.read(_BLOCK):
                return False
        return sizes[0] > 0


def _test_file(folder: RunFolder, name: str) -> Path:
    return folder.version(name) / PREDICTIONS / "test.parquet"


def _said_of(folder: RunFolder, names: list[str]) -> list[Predictions]:
    """What each version says of the last one's test part, as far as that is known: after growth, of more samples."""
    found = []
    for name in names:
        again = folder.version(names[-1]) / EARLIER / f"{name}.parquet"
        found.append(read_predictions(again if again.exists() else _test_file(folder, name)))
    return found


def _missing(*said: Predictions) -> str:
    """Versions whose test parts differ are compared on the samples that they share."""
    return "error" if len({one.fingerprint for one in said}) == 1 else "drop"
