"""A bench's spec from its file. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipguard._nearest import nearest
from flipguard.bench.plan import BenchSpec
from flipguard.spec.training import changed, parse_as, read_mapping
from flipguard.types import InputError

HOME = Path("recipes") / "bench"


def bench_file(name: str) -> Path:
    """A YAML file by its path, or by its name in recipes/bench/."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    own = HOME / f"{name}.yaml"
    if not own.exists():
        hint = (
            nearest(name, bench_names()) if bench_names() else "; run it in a clone of flipguard, or give a YAML file."
        )
        raise InputError(f"there is no bench '{name}' in {HOME}{hint}")
    return own


def bench_names() -> list[str]:
    """The benches of recipes/bench/ where this is run."""
    return sorted(path.stem for path in HOME.glob("*.yaml"))


def read_bench(path: Path, changes: Sequence[str] = ()) -> BenchSpec:
    """The file with `key=value` changes laid over it; `like` names a file beside it that the rest is taken from."""
    return parse_as(BenchSpec, changed(_read(path, ()), changes), path.name)


def _read(path: Path, above: tuple[str, ...]) -> dict[str, Any]:
    """What a file says, laid over the one that it is like."""
    raw = read_mapping(path, "data, old, new, networks and rows")
    like = raw.pop("like", None)
    if like is None:
        return raw
    if not isinstance(like, str) or Path(like).name != like:
        raise InputError(f"{path.name}: like must be the name of a file in the same folder, it is {like!r}.")
    if like in (*above, path.name):
        raise InputError(f"{path.name}: like leads back to {like}.")
    return _laid_over(_read(path.parent / like, (*above, path.name)), raw)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Training and data key by key, everything else whole."""
    found = dict(below)
    for key, value in above.items():
        both = key in ("data", "train") and isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **value} if both else value
    return found
