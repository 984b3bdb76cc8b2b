"""`flipguard train SPEC`."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flipguard.cli import options as o
from flipguard.cli.demo import with_torch
from flipguard.cli.outputs import STDOUT, check_outputs, deliver, say
from flipguard.cli.shell import REFUSED, complain, without_terminal
from flipguard.types import InputError, MissingExtra

if TYPE_CHECKING:
    from flipguard.comparison.result import Matrix
    from flipguard.releases import Listener, Outcome, TrainSpec

EPILOG = """Examples:

  flipguard train recipes/digits_update.yaml

  flipguard train recipes/digits_update.yaml train.epochs=3 method.alpha=0.9 --out runs/trial

  flipguard train recipes/digits_update.yaml method=recommended --dry-run

  flipguard train update.yaml --device cuda --track tensorboard --json run.json

  flipguard train update.yaml seed=[0,1,2] --on ray"""
STOPPED = {SIGINT: "interrupted", SIGTERM: "told to end", SIGHUP: "the terminal was closed"}


def train(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="What to train: a YAML file.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Changes to the spec, by dotted key.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The run folder. Default: runs/ and the spec's name.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, or auto.")] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray|ADDRESS", help="Spread members and seeds over a Ray cluster: a local one, or its address."
        ),
    ] = None,
    track: Annotated[
        str | None, typer.Option(metavar="tensorboard|mlflow|wandb", help="Log every epoch to a tracker.")
    ] = None,
    json: o.Json = None,
    plain: o.Plain = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the resolved spec, train nothing.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Check every file of the run, and make again what is damaged.")
    ] = False,
    trust: o.Trust = False,
    debug: o.Debug = False,
) -> int:
    """Train an update, or a chain of versions, and compare every version with those before it.

    The same command again goes on where it stopped, or says that it is finished. Under torchrun or accelerate launch
    every process trains, and the first writes.

    Which method? method=recommended takes what our measurements favour, by what a version follows: elodi for a first
    release, for twelve trainings; after it, as long as its members are kept, scion on images and heir on texts, with
    elodi's error and flips for three; after anything else graft, for three, or on texts long focal distillation. What
    is taken, and on what evidence, is said before it begins (docs/methods/index.md). For small networks that overfit,
    and tuned: twins, two or three trainings for each release and no ensemble, is ahead of elodi on AG News.
    `flipguard methods` lists all.

    Exit status: 0 done, 1 the spec's gate refuses, 2 bad input, 130 interrupted (129 when the terminal was closed).
    """
    from flipguard.spec.training import read_training_spec

    check_outputs({"--json": json}, [spec])
    wanted = read_training_spec(spec, changes or [])
    folder = Path(out) if out is not None else Path("runs") / Path(spec).stem
    releases = with_torch("flipguard.releases.run", "training", "train")
    train = releases.train if on is None else _on_cluster(on, alone=releases.alone())
    if not releases.leads():
        # A launcher's first process speaks for all.
        if not dry_run:
            releases.train(wanted, folder, device=device, trust=trust, repair=repair)
        return 0
    if dry_run:
        return _dry_run(releases, wanted, folder, device=device, trust=trust)
    listener = _listener(track, quiet=json == STDOUT, plain=plain)
    signals = import_module("flipguard.training.signals")
    try:
        with signals.heeded():
            outcome = train(wanted, folder, listener=listener, device=device, trust=trust, repair=repair)
    except signals.Stopped as stop:
        listener.close()
        if stop.number == SIGHUP:
            without_terminal()
        complain(f"{STOPPED[stop.number]}. The same command goes on from what {folder} holds.")
        return int(stop.status)
    finally:
        listener.close()
    _write_reports(outcome)
    deliver({json: lambda: _json(outcome)}, lambda: _table(outcome), plain=plain)
    return REFUSED if outcome.passed is False else 0


def _on_cluster(on: str, *, alone: bool) -> Any:
    """`train`, with the work done by a cluster, which is looked for when there is work."""
    cluster = with_torch("flipguard.integrations.ray", "training on a cluster", "ray")
    if not alone:
        raise InputError("--on spreads the work by itself: start the command without a launcher.")
    spread = import_module("flipguard.releases.spread")
    return partial(spread.train_on, partial(cluster.connected, on))


def _dry_run(releases: Any, wanted: "TrainSpec", folder: Path, *, device: str | None, trust: bool) -> int:
    from flipguard.releases.resolved import as_dict
    from flipguard.releases.yaml_text import as_yaml

    run = releases.check(wanted, folder, device=device, trust=trust)
    say("".join(f"# {text}\n" for text in run.notes) + as_yaml(as_dict(run.spec)))
    return 0


def _listener(track: str | None, *, quiet: bool, plain: bool) -> "Listener":
    from rich.console import Console

    from flipguard.releases.listener import Listeners
    from flipguard.reports.progress import LiveProgress, PlainProgress

    several: list[Listener] = []
    if track is not None:
        several.append(with_torch("flipguard.releases.tracking", "tracking", "track").tracker(track))
    console = Console(stderr=quiet, highlight=False, emoji=False)
    if plain or not console.is_terminal:
        several.append(PlainProgress(aside if quiet else say))
    else:
        several.append(LiveProgress(console))
    return Listeners(several)


def aside(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _write_reports(outcome: "Outcome") -> None:
    """What a reader opens: the comparisons as Markdown, a chain's picture, a card for every release."""
    from flipguard.reports.run import run_markdown
    from flipguard.reports.write import write_text

    for run in outcome.runs or (outcome,):
        if run.comparisons:
            write_text(run.folder / "comparison.md", run_markdown(run))
        if run.matrix is not None:
            _draw_chain(run.matrix, run.folder / "chain.svg")
        _write_cards(run)


def _write_cards(run: "Outcome") -> None:
    """versions/<name>/card.md: what each release is, and what it broke of every earlier one."""
    import json as library

    from flipguard.reports.card import compared_card
    from flipguard.reports.write import write_text

    for name in run.versions:
        home = run.folder / "versions" / name
        said = home / "predictions" / "test.parquet"
        if said.exists():
            earlier = {str(c.old.version): c for c in run.comparisons if c.new.version == name}
            facts = library.loads((home / "model.json").read_text(encoding="utf-8"))
            write_text(home / "card.md", compared_card(name, facts, earlier, said))


def _draw_chain(chain: "Matrix", path: Path) -> None:
    from flipguard.analysis.draw import draw
    from flipguard.analysis.rates import over_the_chain

    try:
        draw(over_the_chain(chain), path)
    except MissingExtra as error:
        aside(f"{path} is not drawn: {error}\n")


def _json(outcome: "Outcome") -> str:
    import json as library

    return library.dumps(outcome.as_dict(), indent=2, ensure_ascii=False) + "\n"


def _table(outcome: "Outcome") -> Any:
    from flipguard.reports.run import run_report

    return run_report(outcome)
