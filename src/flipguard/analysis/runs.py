"""What the folder of a finished run holds for a figure, a report or a tracker, read without torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flipguard.comparison import Comparison
from flipguard.predictions import read_predictions
from flipguard.releases.folder import (
    EARLIER,
    METRICS,
    PREDICTIONS,
    RUN,
    SPEC,
    Metrics,
    deciding,
    finished_of,
    read_json,
    simple,
    unfinished,
)
from flipguard.releases.yaml_text import parse_yaml
from flipguard.types import InputError

TEST = "test.parquet"


@dataclass(frozen=True)
class FinishedRun:
    """A folder of `flipguard train`: its resolved spec, and its versions whose predictions on the test part are there.

    Versions are in the chain's order, the oldest first.
    """

    path: Path
    spec: dict[str, Any]
    versions: tuple[str, ...]

    def home(self, version: str) -> Path:
        return self.path / "versions" / version

    def predictions(self, version: str) -> Path:
        return self.home(version) / PREDICTIONS / TEST

    @property
    def said(self) -> list[Path]:
        """What each version said of the last one's test part, as far as that is known; the oldest first."""
        again = {version: self.home(self.versions[-1]) / EARLIER / f"{version}.parquet" for version in self.versions}
        return [file if file.exists() else self.predictions(version) for version, file in again.items()]

    def check_finished(self) -> None:
        """Refuses a run whose last version is still to be trained: the one before it would be taken for it."""
        names = [str(version["name"]) for version in self.spec["versions"]]
        finished = finished_of(self.path, names)
        if names[-1:] != finished[-1:]:
            said = f"name files that are there, such as {self.predictions(finished[-1])}" if finished else ""
            raise InputError(unfinished(self.path, names[-1], said))

    @property
    def update(self) -> tuple[Path, Path]:
        """Predictions of the version before the last, and of the last."""
        self.check_finished()
        if len(self.versions) < 2:
            raise InputError(
                f"{self.path} has {len(self.versions)} version with test predictions: an update needs two."
            )
        old, new = self.said[-2:]
        return old, new

    @property
    def chain(self) -> list[Path]:
        """Predictions of the versions before the update, the oldest first."""
        return self.said[:-2]

    @cached_property
    def same_test(self) -> bool:
        """Whether all versions were tested on the same samples; data that grew have others."""
        return len({read_predictions(file).fingerprint for file in self.said}) == 1

    @cached_property
    def comparison(self) -> Comparison:
        """What the last update came to, with the gate's verdict."""
        path = self.path / "comparison.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
        if not isinstance(found, list) or not found:
            raise InputError(f"{self.path} compares nothing: a run that is logged has an old version and a new one.")
        return Comparison.model_validate(found[-1])

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that decides what the run gives, by dotted names."""
        return {key: simple(value) for key, value in deciding(self.spec).items()}

    def epochs(self, version: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, in order; none for a version that was not trained here."""
        return Metrics(self.home(version) / METRICS).lines

    @property
    def measured_epochs(self) -> bool:
        """Whether flips were measured while a version was trained: one that has a predecessor."""
        return any(line.get("old") is not None for version in self.versions for line in self.epochs(version)[-1:])

    def measured_on(self, version: str) -> str | None:
        """The part that a version's epochs were measured on, where that was written down."""
        parts = {line.get("part") for line in self.epochs(version)}
        return parts.pop() if len(parts) == 1 else None

    def setting(self, key: str) -> float:
        """The number that a dotted key of the last version has in the spec, such as method.alpha."""
        value: Any = next(v for v in self.spec["versions"] if v["name"] == self.versions[-1])
        for word in key.split("."):
            value = value.get(word) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            said = "has no" if value is None else f"has {value!r} as"
            raise InputError(f"{self.path}: the last version {said} {key}; the figure needs a number.")
        return float(value)


def read_run(path: str | Path) -> FinishedRun:
    """The run of a folder."""
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path} is a file, and a run is a folder: the one that flipguard train wrote.")
    if not path.is_dir():
        raise InputError(f"the run folder {path} does not exist.")
    if not is_run(path):
        inner = [entry.name for entry in _inner(path)]
        hint = f"it holds the runs {', '.join(inner)}: name one of them" if inner else f"it has no {SPEC}"
        raise InputError(f"{path} is no run folder: {hint}.")
    spec = parse_yaml((path / SPEC).read_text(encoding="utf-8"), str(path / SPEC))
    listed = spec.get("versions") if isinstance(spec, dict) else None
    if not isinstance(listed, list) or not all(isinstance(each, dict) and "name" in each for each in listed):
        raise InputError(f"{path / SPEC} is no run's: it lists no versions.")
    names = [str(version["name"]) for version in listed]
    there = tuple(name for name in names if (path / "versions" / name / PREDICTIONS / TEST).is_file())
    return FinishedRun(path, spec, there)


def read_finished(path: str | Path) -> FinishedRun:
    """The run of a folder, if it is finished and has an update to tell of."""
    path = Path(path)
    if not (path / RUN).is_file() or not is_run(path):
        raise InputError(f"{path} is no run folder: flipguard train writes one, with {SPEC} and {RUN}.")
    status = read_json(path / RUN).get("status")
    if status != "finished":
        raise InputError(f"the run in {path} is {status}: let flipguard train finish it first.")
    run = read_run(path)
    # Read now, so that a folder that cannot tell of its update is refused before anything is logged of it.
    assert run.comparison is not None
    return run


def read_runs(path: str | Path) -> list[FinishedRun]:
    """The run of a folder, or the runs by several seeds in it."""
    inner = _inner(Path(path)) if not is_run(path) else []
    return [read_run(entry) for entry in inner] or [read_run(path)]


def is_run(path: str | Path) -> bool:
    """Whether a path leads to a run folder."""
    return (Path(path) / SPEC).is_file()


def _inner(path: Path) -> Sequence[Path]:
    return sorted((entry.parent for entry in path.glob(f"*/{SPEC}")), key=lambda entry: (len(entry.name), entry.name))
