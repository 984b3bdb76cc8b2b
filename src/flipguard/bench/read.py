"""A bench's spec from its file. No torch."""

from collections.abc import Sequence
from pathlib import Path

from flipguard.bench.plan import BenchSpec
from flipguard.models.nearest import nearest
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
    """The file with `key=value` changes laid over it."""
    return parse_as(BenchSpec, changed(read_mapping(path, "data, old, new, networks and rows"), changes), path.name)
