"""The training spec: YAML and `key=value` in, a checked `TrainSpec` out; what is wrong is said in one line."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from flipguard._nearest import shortened
from flipguard.releases.plan import DataPlan, TrainSpec
from flipguard.releases.yaml_text import parse_yaml
from flipguard.types import InputError

_SHORT = {"old": "run", "new": "run", "model": "name", "method": "name", "data": "name"}
"""Keys whose value may be a text, short for a mapping with this one key."""

_NAME = re.compile(r"[a-z0-9-]+")
"""What a data set is called."""

MOST_BYTES = 4_000_000
Spec = TypeVar("Spec", bound=BaseModel)


def read_training_spec(path: str | Path, changes: Sequence[str] = ()) -> TrainSpec:
    """A YAML file, with `key=value` changes laid over it: keys are dotted, values are YAML."""
    path = Path(path)
    return parse_training_spec(changed(read_mapping(path, "data, old and new"), changes), path.name)


def read_mapping(path: Path, keys: str) -> dict[str, Any]:
    """The YAML file's keys and values; `keys` are those that an error speaks of."""
    raw = parse_yaml(_text(path), path.name)
    if not isinstance(raw, dict):
        raise InputError(f"{path.name} must be a mapping with {keys}, it is {_kind(raw)}.")
    return raw


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes; a spec of more than {MOST_BYTES:,} is refused."
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}.") from error


def parse_training_spec(raw: Mapping[str, Any], source: str = "spec") -> TrainSpec:
    """A mapping, as YAML gives it, as a checked spec. Nothing is converted: "3" is no number."""
    return parse_as(TrainSpec, raw, source)


def parse_as(kind: type[Spec], raw: Mapping[str, Any], source: str) -> Spec:
    """A mapping as a spec of any kind; the first thing that is wrong is an error in one line."""
    try:
        return kind.model_validate(dict(raw), strict=True)
    except ValidationError as error:
        raise InputError(f"{source}: {_first_problem(error, raw, kind)}") from error


def read_data_plan(given: Sequence[str]) -> DataPlan:
    """The data of a spec file, or a data set's name, with `key=value` changes laid over; or the changes alone."""
    files, changes = [name for name in given if "=" not in name], [name for name in given if "=" in name]
    if len(files) > 1:
        raise InputError(f"--data takes one spec and key=value, not {' and '.join(map(shortened, files))}.")
    raw: dict[str, Any] = {}
    if files:
        named = _NAME.fullmatch(files[0]) and not Path(files[0]).exists()
        raw = {"name": files[0]} if named else _data_in(Path(files[0]))
    return parse_as(DataPlan, changed(raw, changes), "--data")


def _data_in(path: Path) -> dict[str, Any]:
    """What a spec's file says of its data, or a file that says nothing else."""
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    try:
        found = parse_yaml(_text(path), path.name)
    except InputError:
        if is_yaml or not path.is_file():
            raise
        found = None
    raw = found.get("data", found) if isinstance(found, dict) else found
    if isinstance(raw, str) and _NAME.fullmatch(raw):
        raw = {"name": raw}
    if not isinstance(raw, dict):
        came = f": its data is {_kind(raw)}" if is_yaml else ""
        raise InputError(
            f"{shortened(str(path))} is no training spec{came}. --data takes one (.yaml), a data set's name, or "
            "settings such as name=table folder=. train=a.csv test=b.csv."
        )
    return raw


def training_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a training spec."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **TrainSpec.model_json_schema()}


def changed(raw: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The spec with each `key=value` laid over it. Versions in a list go by name or place.

    >>> changed({"method": "elodi", "versions": [{"name": "a"}]}, ["method.alpha=0.9", "versions.a.seed=3"])
    {'method': {'name': 'elodi', 'alpha': 0.9}, 'versions': [{'name': 'a', 'seed': 3}]}
    """
    spec: dict[str, Any] = _copied(raw)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError(f"'{change}' is no key=value: write, for example, train.epochs=3.")
        *above, last = key.split(".")
        home: Any = spec
        for depth, part in enumerate(above):
            home = _inside(home, part, ".".join(above[: depth + 1]))
        if isinstance(home, list):
            home[_place(home, last, key)] = parse_yaml(text, key)
        else:
            home[last] = parse_yaml(text, key)
    return spec


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _inside(home: Any, part: str, key: str) -> Any:
    """The mapping or list at `part`, made when it is not there, and written out when it is short."""
    where: Any = _place(home, part, key) if isinstance(home, list) else part
    found = home[where] if isinstance(home, list) else home.get(where)
    if found is None:
        found = {}
    elif isinstance(found, str) and part in _SHORT:
        found = {_SHORT[part]: found}
    if not isinstance(found, dict | list):
        raise InputError(f"{key} is {_kind(found)}: it has no keys to set.")
    home[where] = found
    return found


def _place(versions: list[Any], part: str, key: str) -> int:
    names = [version.get("name") if isinstance(version, dict) else None for version in versions]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(versions):
        return int(part)
    raise InputError(f"{key}: there is no entry '{part}' in a list of {len(versions)}.")


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", type(None): "empty"}
    return names.get(type(value), f"a single {type(value).__name__}")


def _first_problem(error: ValidationError, raw: Mapping[str, Any], kind: type[BaseModel]) -> str:
    problem = error.errors()[0]
    place = _place_in(problem["loc"], raw)
    if problem["type"] == "extra_forbidden":
        return unknown_key(place, _model_at(place[:-1], kind))
    if problem["type"] == "missing":
        return f"'{'.'.join(place)}' is missing."
    if problem["type"] == "value_error" and not place:
        return f"{str(problem['msg']).removeprefix('Value error, ')}."
    return f"{'.'.join(place)} {_expected(problem)}"


def unknown_key(place: Sequence[str], model: type[BaseModel]) -> str:
    """What to say of a key that a model has not: its nearest, or the same key one level further in.

    >>> unknown_key(["epochs"], TrainSpec)
    "a spec has no key 'epochs'; did you mean 'train.epochs'?"
    """
    *above, name = place
    known = list(model.model_fields)
    home = ".".join(above) or "a spec"
    inner = {key: _model_in(field.annotation) for key, field in model.model_fields.items()}
    further = [".".join([*above, key, name]) for key, found in inner.items() if found and name in found.model_fields]
    # A version of a list has a name, which is not known here.
    close = [key for key in further if key != f"versions.{name}"] or get_close_matches(name, known, n=1)
    hint = f"did you mean {' or '.join(repr(key) for key in close)}?" if close else f"known: {', '.join(known)}."
    return f"{home} has no key '{shortened(name)}'; {hint}"


def _place_in(loc: Sequence[int | str], raw: Any) -> list[str]:
    """The keys of a place as the user wrote them: a union's branches, which pydantic names too, are left out."""
    place: list[str] = []
    for number, part in enumerate(loc):
        inside = isinstance(raw, dict) and part in raw
        inside = inside or (isinstance(raw, list) and isinstance(part, int) and part < len(raw))
        if inside:
            raw = raw[part]
        elif number < len(loc) - 1 or not isinstance(raw, dict):
            continue
        place.append(str(part))
    return place


def _expected(problem: Any) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    for name, word in words.items():
        if name in problem.get("ctx", {}):
            return f"must be {word} {problem['ctx'][name]:g}, it is {shortened(str(problem['input']))}."
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be ", "")
    if problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "a mapping"
    return f"must be {message}, it is {shortened(repr(problem['input']))}."


def _model_at(place: Sequence[str], kind: type[BaseModel]) -> type[BaseModel]:
    """What a place in a spec is checked by."""
    for part in place:
        # What is no field is the name of an entry: a version's place in its list, a network of a bench.
        if part in kind.model_fields:
            kind = _model_in(kind.model_fields[part].annotation) or kind
    return kind


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
