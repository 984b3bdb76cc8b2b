"""From a spec to run folders: what is to be trained, checked before anything is, and trained to its end."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from flipguard.data import DataSet
from flipguard.releases.chosen import chosen
from flipguard.releases.folder import SPEC, RunFolder
from flipguard.releases.job import Job, Run
from flipguard.releases.listener import Listener
from flipguard.releases.outcome import Outcome, conclude
from flipguard.releases.plan import TrainSpec
from flipguard.releases.repair import repairable
from flipguard.releases.resolved import as_dict, resolve
from flipguard.releases.trust import check_spec
from flipguard.training.distributed import POLL_SECONDS
from flipguard.training.distributed import place as team_place
from flipguard.types import InputError

Stored = Callable[[RunFolder], TrainSpec | None]


def train(
    spec: TrainSpec,
    out: str | Path,
    *,
    listener: Listener | None = None,
    device: str | None = None,
    trust: bool = False,
    repair: bool = False,
) -> Outcome:
    """Train what the spec asks for into a folder, or go on where a run in it stopped.

    The spec is held against the folder first: one that would give other networks is refused. Every version is rehearsed
    before the first is trained. With a list of seeds, each has a run of its own in `out/seed_<s>`. A device given here
    is taken instead of the spec's. `trust` lets code run that the spec names (`module:factory`). `repair` looks through
    everything that the folder holds and makes again what is damaged.

    Under a launcher every process calls this: all of them train, members by themselves and versions together, and the
    first alone checks, writes and compares; the outcome of the others has nothing but names.
    """
    listener = listener or Listener()
    if spec.artifacts is not None:
        raise InputError("artifacts is where the machines of a cluster keep their work: give --on, or leave it out.")
    planned = runs_of(spec, Path(out), trust=trust, repair=repair)
    told: set[str] = set()
    runs = []
    for job in (Job.of(run, listener, device, trust, repair) for run in planned):
        job.notes = tuple(text for text in job.notes if text not in told)
        runs.append(train_one(job) if leads() else _follow(job))
        told |= set() if runs[-1].found else set(job.notes)
    if not isinstance(spec.seed, list):
        return runs[0]
    return Outcome(Path(out), runs[0].versions, found=all(run.found for run in runs), runs=tuple(runs))


def leads() -> bool:
    """Whether this is the process that writes: the only one, or a launcher's first."""
    return team_place()[0] == 0


def alone() -> bool:
    """Whether no launcher has started other processes beside this one."""
    return team_place()[1] == 1


def check(spec: TrainSpec, out: str | Path, *, device: str | None = None, trust: bool = False) -> Run:
    """Everything that `train` checks before it trains; nothing is written.

    Returns the run, of several that of the first seed, with what is told of any of them.
    """
    runs = runs_of(spec, Path(out), trust=trust)
    for run in runs:
        job = Job.of(run, Listener(), device, trust)
        job.check_sources()
        job.folder.check(as_dict(job.spec))
        job.rehearse()
    return replace(runs[0], notes=tuple(dict.fromkeys(text for run in runs for text in run.notes)))


def runs_of(
    spec: TrainSpec, out: Path, *, trust: bool = False, repair: bool = False, stored: Stored = RunFolder.stored
) -> list[Run]:
    """A run for each seed; `stored` is what its folder was begun with, where that is not in the folder itself yet."""
    plan = partial(_run_of, trust=trust, repair=repair, stored=stored, loaded={})
    if not isinstance(spec.seed, list):
        return [plan(spec, RunFolder(out))]
    if (out / SPEC).exists():
        raise InputError(f"{out} is a run by one seed, and several have a folder each in --out: give another --out.")
    each = [spec.model_copy(update={"seed": seed}) for seed in spec.seed]
    return [plan(one, RunFolder(out / f"seed_{one.seed}")) for one in each]


def _run_of(
    spec: TrainSpec, folder: RunFolder, *, trust: bool, repair: bool, stored: Stored, loaded: dict[str, DataSet]
) -> Run:
    def left(before: TrainSpec, look: bool) -> bool | None:
        check_spec(before, trust=trust)
        job = Job(before, folder, Listener(), "cpu", trust, repair, loaded=loaded)
        return job.members_left(job.versions[-1], look=look)

    begun = stored(folder)
    versions = begun.versions or [] if begun is not None else []
    found = chosen(spec, {str(one.name): one.method for one in versions if one.method is not None}, left)
    return Run(resolve(found.spec), folder, found.notes, loaded)


def train_one(job: Job, *, patience: float = 0.0) -> Outcome:
    """A run over one seed to its end."""
    folder, resolved, listener = job.folder, as_dict(job.spec), job.listener
    job.check_sources()
    with folder.held(patience), repairable(folder.path, folder.members(job.spec.members)):
        folder.check(resolved)
        if job.repair:
            job.clear_damage()
        found = not job.lost and all(job.is_done(version) for version in job.versions)
        if not found:
            # Before what may be wrong with them, so that nobody wonders who named such a method.
            for text in job.notes:
                listener.note(text)
            job.check_data(folder.facts().get("data", {}))
            job.rehearse()
        # Only now: a spec that cannot work must not keep the folder from the one that is put right.
        folder.adopt(resolved)
        listener.run_begins(str(folder.path), resolved)
        if not found:
            job.work()
        outcome = conclude(folder, [str(version.name) for version in job.versions], job.spec.gate, found=found)
        for text in outcome.notes:
            listener.note(text)
    return outcome


def _follow(job: Job) -> Outcome:
    """Train along with the first process, once that has found everything in order."""
    job.listener, resolved = Listener(), as_dict(job.spec)
    while not job.folder.holds(resolved):
        time.sleep(POLL_SECONDS)
    if not all(job.is_done(version) for version in job.versions):
        job.follow()
    return Outcome(job.folder.path, tuple(str(version.name) for version in job.versions))
