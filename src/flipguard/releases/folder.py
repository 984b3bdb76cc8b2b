"""The run folder: where everything lies, who may write, and whether a spec belongs to it.

spec.yaml                     the resolved spec
run.json                      versions of what was used, the platform, data fingerprints, status, seconds
members/<key>/                the ensembles' members (elsewhere when the spec says so)
versions/<name>/              metrics.jsonl, state.safetensors while it trains; model.safetensors and model.json,
                              predictions/<part>.parquet when it is done; earlier/<name>.parquet, what an earlier
                              version says of this one's test part, where its own is another; card.md
comparison.json, matrix.json  every later version against every earlier one; comparison.md and, of a chain, chain.svg
"""

import fcntl
import io
import json
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from flipguard.files import EMPTY_SEAL, seal, seal_holds, whole_file
from flipguard.releases.plan import TrainSpec
from flipguard.releases.yaml_text import as_yaml, parse_yaml
from flipguard.types import DamagedFile, InputError

SPEC, RUN, LOCK = "spec.yaml", "run.json", "lock"
METRICS, STATE, MODEL, CARD, PREDICTIONS, EARLIER = (
    "metrics.jsonl",
    "state.safetensors",
    "model.safetensors",
    "model.json",
    "predictions",
    "earlier",
)
_SEAL = "seal"
_FREE = {"folder", "device", "engine", "processes", "checkpoint_every", "resources", "spread", "sharded", "workers"}
"""Keys that may change between two calls: where things are, and how the work is spread, decide no weights."""


@dataclass(frozen=True)
class RunFolder:
    """A folder that belongs to one spec."""

    path: Path

    def version(self, name: str) -> Path:
        return self.path / "versions" / name

    def members(self, shared: str | None) -> Path:
        return Path(shared) if shared is not None else self.path / "members"

    @contextmanager
    def held(self, patience: float = 0.0) -> Iterator[None]:
        """Within, no other process works in this folder. The lock goes with its holder, however that ends.

        `patience` is for how many seconds a holder is waited for, as one that was cut off from a cluster may linger. A
        folder that was made here for what was then refused is removed again.
        """
        made_here = [place for place in (self.path, *self.path.parents) if not os.path.lexists(place)]
        with self._locked(patience) as lock:
            lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            lock.flush()
            self._sweep()
            try:
                yield
            except BaseException:
                self._leave_nothing(made_here)
                raise

    def _locked(self, patience: float) -> TextIO:
        """The lock file, open, empty and held: the one that lies there, as another process may just remove its own."""
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = (self.path / LOCK).open("a+", encoding="utf-8")
            except OSError as error:
                raise InputError(f"the run folder {self.path} cannot be written: {error.strerror or error}.") from error
            try:
                _lock(lock, time.monotonic() + patience)
            except OSError as error:
                lock.seek(0)
                holder = " ".join(lock.read().split()) or "another process"
                lock.close()
                raise InputError(f"{self.path} is in use by {holder}: wait for it, or give another --out.") from error
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), (self.path / LOCK).stat()):
                    lock.seek(0)
                    lock.truncate()
                    return lock
            lock.close()

    def _leave_nothing(self, made_here: Sequence[Path]) -> None:
        """When nothing but the lock is there, remove it, and the folders that were made for this call."""
        with suppress(OSError):
            if [entry.name for entry in self.path.iterdir()] == [LOCK]:
                (self.path / LOCK).unlink()
                # The inner ones first; one that holds something else stays, and so do those around it.
                for place in made_here:
                    place.rmdir()

    def _sweep(self) -> None:
        """Remove what a process left that was stopped while it wrote or tidied up; nobody else is writing now."""
        for home in (".", "versions/*", "versions/*/*"):
            for left in self.path.glob(f"{home}/.*.part"):
                left.unlink(missing_ok=True)
        for card in self.path.glob(f"versions/*/{CARD}"):
            # Of a version that is done: its state goes right after the card is written.
            card.with_name(STATE).unlink(missing_ok=True)

    def adopt(self, spec: Mapping[str, Any]) -> None:
        """Write the resolved spec, which must not contradict the one that is there."""
        self.check(spec)
        with whole_file(self.path / SPEC) as beside:
            beside.write_text(as_yaml(dict(spec)), encoding="utf-8")

    def check(self, spec: Mapping[str, Any]) -> None:
        """Hold a resolved spec against the one that is there: versions may be added at the end."""
        path = self.path / SPEC
        if path.exists():
            self._check_same(_completed(_begun(path)), spec)
        elif self.path.is_dir() and any(entry.name != LOCK for entry in self.path.iterdir()):
            raise InputError(f"{self.path} holds other things and no {SPEC}: give an empty folder as --out.")

    def _check_same(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        old, new = deciding(there), deciding(here)
        names = {version["name"] for version in there.get("versions", [])}
        added = deciding(
            {"versions": [version for version in here.get("versions", []) if version["name"] not in names]}
        )
        order = [version["name"] for version in here.get("versions", [])]
        if [name for name in order if name in names] != order[: len(names)]:
            late = next(name for name, kept in zip(order, there["versions"], strict=False) if name != kept["name"])
            raise InputError(
                f"{self.path} was begun without the version '{late}' at that place: versions are added at the end; "
                "for another chain, give another --out."
            )
        for key in (*old, *new):
            if key not in added and old.get(key) != new.get(key):
                raise InputError(
                    f"{self.path} was begun with {key} {said(old.get(key))}, and this spec has {said(new.get(key))}: "
                    "use the same, or another --out."
                )

    def holds(self, spec: Mapping[str, Any]) -> bool:
        """Whether this very spec, in all that decides the networks, was adopted."""
        path = self.path / SPEC
        if not path.exists():
            return False
        return deciding(_completed(_begun(path))) == deciding(spec)

    def stored(self) -> TrainSpec | None:
        """The spec that the folder's run was begun with, as far as it can be read."""
        path = self.path / SPEC
        try:
            return TrainSpec.model_validate(_begun(path), strict=True)
        except (OSError, ValidationError, InputError):
            return None

    def note(self, facts: Mapping[str, Any]) -> None:
        """Lay facts over those of run.json."""
        write_json(self.path / RUN, {**self.facts(), **facts})

    def facts(self) -> dict[str, Any]:
        return read_json(self.path / RUN) if (self.path / RUN).exists() else {}


def _lock(file: TextIO, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _begun(path: Path) -> dict[str, Any]:
    """What a run was begun with, as it stands in its folder: a mapping with versions that have names."""
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        if found["versions"] and all(isinstance(version, dict) and "name" in version for version in found["versions"]):
            return dict(found)
    except (UnicodeDecodeError, KeyError, TypeError):
        pass
    raise InputError(f"{path} is not what a run was begun with: it lists no versions. Bring it back.")


def _completed(stored: Any) -> Mapping[str, Any]:
    """A folder's spec with the defaults of settings that came after it was written."""
    try:
        # Loads torch, without which the rest of a folder can be read.
        from flipguard.releases.resolved import as_dict, resolve

        return as_dict(resolve(TrainSpec.model_validate(stored, strict=True)))
    except (ValidationError, InputError):
        return stored if isinstance(stored, dict) else {}


def simple(value: Any) -> Any:
    """A value of a spec as every tracker takes one."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def deciding(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to values, for all that decides what a run gives; versions go by name.

    >>> deciding({"data": {"name": "digits", "folder": "x"}, "versions": [{"name": "v0", "model": {"name": "mlp"}}]})
    {'data.name': 'digits', 'versions.v0.name': 'v0', 'versions.v0.model.name': 'mlp'}
    """
    versions = {"versions": {version["name"]: version for version in spec.get("versions", [])}}
    return dict(dotted({"data": spec.get("data"), **versions}, ""))


def dotted(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a mapping by dotted key, but for those that may change between two calls."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _FREE:
                yield from dotted(inner, f"{key}.{name}" if key else str(name))
    elif value is not None:
        yield key, value


def said(value: Any) -> str:
    """A setting as a message names it."""
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


class Metrics:
    """metrics.jsonl: one line per epoch, each epoch once, whatever was killed in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = _epochs(path)

    def add(self, figures: Mapping[str, Any]) -> None:
        """This epoch's line in place of whatever stood there for it or for later ones.

        An epoch is reported before its state is saved, so a run that was killed in between reports it again.
        """
        self.lines = [line for line in self.lines if line["epoch"] < figures["epoch"]] + [dict(figures)]
        with whole_file(self._path) as beside:
            beside.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines), encoding="utf-8")


def _epochs(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it.") from error


def made(folder: Path) -> Path:
    """The folder, made when it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror or error}.") from error
    return folder


def write_json(path: Path, value: Any, *, sealed: bool = False) -> None:
    """Whole or not at all; sealed, with a checksum that `read_json` looks at."""
    if sealed:
        value = {_SEAL: EMPTY_SEAL, **value}
    with whole_file(path) as beside:
        beside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if sealed:
            with beside.open("r+b") as file:
                seal(file, at_end=False)


def read_json(path: Path) -> dict[str, Any]:
    """What write_json wrote, less its seal."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
    if not seal_holds(io.BytesIO(content), at_end=False):
        raise DamagedFile(f"{path} is damaged: its content does not fit its checksum.", path)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{path} is damaged: it cannot be read as JSON ({reason}).", path) from error
    if not isinstance(found, dict):
        raise DamagedFile(f"{path} is damaged: it holds no JSON object.", path)
    return {name: value for name, value in found.items() if name != _SEAL}


def version_home(path: Path, version: str | None = None) -> Path:
    """The folder of a finished version: the one that is named, else the last of the run's spec.

    Never an earlier one in the last one's place: whoever compared a run that was interrupted with the old model would
    compare the old model with itself.
    """
    if (path / CARD).is_file() and version in (None, path.name):
        return path
    if not path.is_dir():
        raise InputError(f"the run folder {path} does not exist.")
    if _is_version(path) and version in (None, path.name):
        path, version = path.parent.parent, path.name
    if not (path / SPEC).is_file():
        inner = sorted(entry.parent.name for entry in path.glob(f"*/{SPEC}"))
        hint = f"it holds the runs {', '.join(inner)}: name one of them" if inner else f"it has no {SPEC}"
        raise InputError(f"{path} is no run folder: {hint}.")
    names = [str(each["name"]) for each in _begun(path / SPEC)["versions"]]
    version = names[-1] if version is None else version
    finished = finished_of(path, names)
    if version in names and version not in finished:
        last = path / "versions" / finished[-1] if finished else None
        hint = f"name one that is ({', '.join(finished)}), by --version or, in a spec, by its folder: {last}"
        raise InputError(unfinished(path, version, hint if finished else ""))
    if version not in finished:
        there = ", ".join(finished) or "none"
        raise InputError(f"{path} has no version '{version}' that is finished; finished: {there}.")
    return path / "versions" / version


def _is_version(path: Path) -> bool:
    """Whether a folder is a version's of a run."""
    return path.parent.name == "versions" and (path.parent.parent / SPEC).is_file()


def finished_of(path: Path, names: Sequence[str]) -> list[str]:
    """Those of a run's versions that are finished, in the same order."""
    return [name for name in names if (path / "versions" / name / CARD).is_file()]


def unfinished(path: Path, version: str, instead: str) -> str:
    """What to say and to do about a version of a run that is not finished; `instead`, where others are, what else."""
    again = shlex.join(["flipguard", "train", str(path / SPEC), "--out", str(path)])
    message = f"{path}: the version '{version}' is not finished: go on with {again}"
    return f"{message}, or {instead}." if instead else f"{message}; none is finished yet."
