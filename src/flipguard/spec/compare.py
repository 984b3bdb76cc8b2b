"""`flipguard.toml`: the thresholds and options that a repository keeps for every comparison."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flipguard.comparison.gate import Confidence, GateSettings, expected
from flipguard.types import InputError

FILE_NAME = "flipguard.toml"


class CompareSettings(BaseModel):
    """The `[compare]` table: options of `flipguard compare`. What is not set keeps the command's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: list[str] | None = None
    confidence: Confidence = None
    on_missing: Literal["error", "drop"] | None = None
    cluster: str | None = None
    correction: Literal["holm", "bh"] | None = None
    alpha: Annotated[float | None, Field(gt=0)] = None
    cost_ratio: Annotated[float | None, Field(ge=0)] = None
    split: str | None = None
    memory: str | None = None


class Spec(BaseModel):
    """A whole `flipguard.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: CompareSettings = CompareSettings()
    gate: GateSettings = GateSettings()


class Settings(NamedTuple):
    """What a comparison is run with, once file and command line are merged."""

    compare: dict[str, Any]
    gate: GateSettings


def find_config(start: Path) -> Path | None:
    """The nearest flipguard.toml in `start` or above, no further up than the repository's root (it holds .git)."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
        if (folder / ".git").exists():
            return None
    return None


def read_spec(path: Path) -> Spec:
    """A file that is missing, no TOML, or has a key or value that flipguard does not know is an error in one line."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}.") from error
    except (ValueError, RecursionError) as error:
        # TOMLDecodeError is a ValueError, and so is a number of too many digits.
        raise InputError(f"{path} is not valid TOML: {error}.") from error
    try:
        # Strictly: "0.01" and true are no numbers in TOML, and silently taking them for 0.01 and 1.0 hides a mistake.
        return Spec.model_validate(data, strict=True)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_first_problem(error)}") from error


def merge(spec: Spec, compare: dict[str, Any], gate: dict[str, Any]) -> Settings:
    """The file's settings, overruled by what was `given` on the command line (everything that is not None)."""
    options = {**_given(spec.compare.model_dump()), **_given(compare)}
    try:
        CompareSettings(**{name: options[name] for name in CompareSettings.model_fields if name in options})
        judged = GateSettings(**{**spec.gate.model_dump(exclude_unset=True), **_given(gate)})
    except ValidationError as error:
        problem = error.errors()[0]
        option = f"--{str(problem['loc'][-1]).replace('_', '-')}"
        raise InputError(f"{option} {expected(problem)}") from error
    return Settings(options, judged)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return _unknown_key(place)
    if len(place) == 1:
        return f"[{place[0]}] must be a table of settings."
    return f"[{place[0]}] {'.'.join(place[1:])} {expected(problem)}"


_TABLES: dict[str, type[BaseModel]] = {"compare": CompareSettings, "gate": GateSettings}


def _unknown_key(place: list[str]) -> str:
    """What has no such name, and what was most likely meant: a key's own table first, then the nearest name."""
    name = place[-1]
    home = next((table for table, kind in _TABLES.items() if name in kind.model_fields), None)
    known = list(_TABLES if len(place) == 1 else _TABLES[place[0]].model_fields)
    close = get_close_matches(name, known, n=1)
    if home:
        hint = f"it belongs under [{home}]."
    elif close:
        hint = f"did you mean '{close[0]}'?"
    else:
        hint = f"known: {', '.join(known)}."
    if len(place) > 1:
        return f"[{place[0]}] has no key '{name}'; {hint}"
    return f"'{name}' stands outside a table; {hint}" if home else f"there is no table '{name}'; {hint}"
