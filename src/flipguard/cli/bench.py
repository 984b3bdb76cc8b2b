"""`flipguard bench NAME`."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import STDOUT, check_outputs, deliver, say
from flipguard.cli.shell import complain
from flipguard.cli.train import STOPPED, aside
from flipguard.types import DamagedFile, InputError

if TYPE_CHECKING:
    from flipguard.bench.run import Bench, Progress

EPILOG = """Examples:

  flipguard bench digits

  flipguard bench cifar100 data.folder=DATA --device cuda --seed 1 --count

  flipguard bench cifar100 --tables --out results/bench/cifar100

  flipguard bench cifar100 --add runs/monday --add runs/tuesday --out results/bench/cifar100

  flipguard bench cifar100 --add results/bench/cifar100_front --row elodi --seed 1 --out results/bench/cifar100"""


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A bench of recipes/bench/, or a YAML file.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Changes to the spec, by dotted key.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Networks and tables. Default: runs/bench/ and the name.")
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Networks that several benches share: a folder, or with --on an address. Default: in --out.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, or auto.")] = "auto",
    row: Annotated[list[str] | None, typer.Option("--row", metavar="ROW", help="Only this row; repeatable.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", metavar="SEED", help="Only this seed; repeatable.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Networks side by side on the CPU. Default: torch's threads, one for each core."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="ray|ADDRESS", help="Train the networks on a Ray cluster: a local one, or its address."),
    ] = None,
    turns: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Commands that share a GPU and name the same file train one at a time, while the others prepare and "
            "compare.",
        ),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Say what is still to be trained, and train nothing.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Only make the tables again, from what the folder holds.")
    ] = False,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="FOLDER",
            help="Only add what this folder holds, from another machine or bench, to --out: all of it, or what --row "
            "and --seed name; repeatable.",
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Check every file of the bench, and make again what is damaged.")
    ] = False,
    json: o.Json = None,
    plain: o.Plain = False,
    trust: o.Trust = False,
    debug: o.Debug = False,
) -> int:
    """Train and compare a whole table of methods under the same conditions.

    Networks that several rows need are trained once. The same command again goes on where it stopped; rows and seeds
    can be added. Writes runs.parquet (every run), predictions.parquet, table.md and front.svg.
    """
    from flipguard.bench.read import bench_file, bench_names, read_bench

    if name is None:
        if add:
            raise InputError("--add needs the name of the bench: its spec says in which order rows and seeds come.")
        return _list(bench_names())
    check_outputs({"--json": json}, [])
    path = bench_file(name)
    folder = Path(out) if out is not None else Path("runs") / "bench" / path.stem
    if tables and changes:
        raise InputError(f"--tables shows what {folder} holds, which {changes[0]} does not change: leave it out.")
    if repair and (count or tables):
        raise InputError(f"{'--count' if count else '--tables'} makes no network and no pair again: leave it out.")
    if add:
        beside: dict[str, Any] = {"--networks": networks, "--processes": processes, "--on": on, "--turns": turns}
        beside |= {"--count": count, "--tables": tables, "--repair": repair, (changes or [""])[0]: changes}
        if others := [option for option, value in beside.items() if value]:
            raise InputError(f"--add only takes what was measured: leave {others[0]} out.")
        wanted = {"rows": row or (), "seeds": seed or ()}
        return _add(read_bench(path, []), folder, [Path(one) for one in add], wanted, json, plain=plain)
    if tables:
        room = with_torch("flipguard.bench.run", "a bench", "train")
        _deliver(folder, _tables(room, folder), json, plain=plain)
        return 0
    spec = read_bench(path, changes or [])
    room = with_torch("flipguard.bench.run", "a bench", "train")
    for place, model in [("old", spec.old), ("new", spec.new), *_models(spec)]:
        import_module("flipguard.releases.trust").check_name(model.name, place, trust=trust)
    if on is not None and device not in ("auto", "cpu"):
        raise InputError(f"--device {device}: on a cluster a network takes what train.resources says; set gpus there.")
    if on is not None and turns is not None:
        raise InputError("--turns is for commands that share a GPU of this machine, not for a cluster: leave it out.")
    where = import_module("flipguard.releases.material").device_of(device if on is None else "cpu")
    elsewhere = networks is not None and import_module("flipguard.training.storage").is_address(networks)
    work: Bench = room.Bench(
        spec,
        folder,
        where,
        rows=row or (),
        seeds=seed or (),
        networks=Path(networks) if networks and not elsewhere else None,
        kept=networks if elsewhere else None,
        turns=Path(turns) if turns is not None else None,
    )
    if count:
        return _count(work)
    signals = import_module("flipguard.training.signals")
    cluster = with_torch("flipguard.integrations.ray", "training on a cluster", "ray") if on is not None else None
    try:
        with signals.heeded():
            pool = cluster.connected(on) if cluster is not None else None
            line = _line(quiet=json == STDOUT)
            rows = work.run(processes=processes, on_network=_tell(line), on_note=_note(line), pool=pool, repair=repair)
    except signals.Stopped as stop:
        complain(f"{STOPPED[stop.number]}. The same command goes on from what {folder} holds.")
        return int(stop.status)
    _deliver(folder, rows, json, plain=plain)
    return 0


def _add(spec: Any, folder: Path, others: list[Path], wanted: dict[str, Any], json: str | None, *, plain: bool) -> int:
    room = with_torch("flipguard.bench.run", "a bench", "train")
    lock = import_module("flipguard.releases.folder").LOCK
    if any((folder / name).exists() for name in (room.PAIRS, lock)):
        raise InputError(
            f"{folder} is where a bench is under way, whose next call makes runs.parquet anew: add it to another --out."
        )
    tell = _note(_line(quiet=json == STDOUT))
    for text in import_module("flipguard.bench.added").add_results(spec, folder, others, **wanted):
        tell(text)
    _deliver(folder, _tables(room, folder), json, plain=plain)
    return 0


def _tables(room: Any, folder: Path) -> Any:
    try:
        return room.write_tables(folder)
    except DamagedFile as error:
        pairs = folder / room.PAIRS
        remedy = f"Without --tables it is made again, from {pairs}." if pairs.is_dir() else "Put back a copy."
        raise DamagedFile(f"{error} {remedy}", error.path) from error


def _models(spec: Any) -> list[tuple[str, Any]]:
    return [(f"networks.{name}", plan.model) for name, plan in spec.networks.items() if plan.model is not None]


def _list(names: list[str]) -> int:
    say("".join(f"{name}\n" for name in names) or "no benches here: give a YAML file, or go to a clone of flipguard.\n")
    return 0


def _count(work: "Bench") -> int:
    found = work.count()
    say(
        f"{found.networks:,} networks to train for {found.rows:,} pairs of models: {found.flops:.3g} operations, as "
        f"many as {found.trainings:,.1f} plain trainings of the new model.\n"
    )
    return 0


def _line(*, quiet: bool) -> Callable[[str], None]:
    """A line as it comes: beside the output where that is read by a program."""
    return (lambda text: aside(f"{text}\n")) if quiet else (lambda text: say(f"{text}\n"))


def _tell(line: Callable[[str], None]) -> Callable[["Progress"], None]:
    return lambda one: line(f"{one.done:,} of {one.total:,}  {one.network}  {one.seconds:.1f} s")


def _note(line: Callable[[str], None]) -> Callable[[str], None]:
    from flipguard.reports.wording import clean

    return lambda text: line(f"note: {clean(text, 300)}")


def _deliver(folder: Path, rows: Any, json: str | None, *, plain: bool) -> None:
    from flipguard.bench.tables import read_facts
    from flipguard.bench.terminal import bench_report

    def as_json() -> str:
        import json as library
        from dataclasses import asdict

        return library.dumps([asdict(row) for row in rows], indent=2) + "\n"

    deliver({json: as_json}, lambda: bench_report(read_facts(folder)["title"], rows), plain=plain)
