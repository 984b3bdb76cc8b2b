"""A spec trained wherever a pool reaches: members and seeds are independent pieces of work, watched in one place."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flipguard.releases.folder import SPEC, STATE, RunFolder
from flipguard.releases.heritage import inherited_from
from flipguard.releases.job import Job
from flipguard.releases.listener import Listener
from flipguard.releases.outcome import Outcome, conclude
from flipguard.releases.pieces import name_of, train_one_member, train_run
from flipguard.releases.plan import ResourcesPlan, TrainPlan, TrainSpec, VersionPlan
from flipguard.releases.references import ensembles_of
from flipguard.releases.repair import repairable
from flipguard.releases.resolved import as_dict, data_of
from flipguard.releases.run import runs_of
from flipguard.releases.settled import card_of
from flipguard.releases.yaml_text import as_yaml
from flipguard.training.kept import put_folder
from flipguard.training.members import MEMBER, clear_damaged_member, member_homes
from flipguard.training.pool import Event, Piece, Pool, Resources
from flipguard.training.storage import Storage, is_address, joined
from flipguard.types import DamagedFile, InputError

LINGER_SECONDS = 20.0
"""How long a folder is waited for whose last driver has just died, and whose workers are about to follow."""


def train_on(
    pool: Callable[[], Pool],
    spec: TrainSpec,
    out: str | Path,
    *,
    listener: Listener | None = None,
    device: str | None = None,
    trust: bool = False,
    repair: bool = False,
) -> Outcome:
    """What `train` does, with the work done by a pool, which is made only when there is work.

    Each member and each seed's chain of versions is a piece of work, and a chain begins when its members are there. All
    machines see the folder `out`; where they share no disk, they keep their work at the spec's `artifacts`, and it is
    brought into `out` in the end. What a pool was at when this process died is found and gone on with by the same call.
    Data are loaded here and sent along; other files that the spec names must be there on every machine.
    """
    spread = _Spread(spec, Path(out), listener or Listener(), device, trust, repair)
    with spread.at_hand():
        pieces = spread.pieces()
        if pieces:
            found = pool()
            spread.begin()
            found.run(pieces, spread.hear)
        runs = spread.concluded()
    if not isinstance(spec.seed, list):
        return runs[0]
    return Outcome(Path(out), runs[0].versions, found=all(run.found for run in runs), runs=tuple(runs))


@dataclass
class _Told:
    """Which members of a version there are, as far as this process knows."""

    label: str
    version: VersionPlan
    total: int
    places: set[str] = field(default_factory=set)
    begun: bool = False


class _Spread:
    def __init__(
        self, spec: TrainSpec, out: Path, listener: Listener, device: str | None, trust: bool, repair: bool
    ) -> None:
        self._spec, self._out, self._listener, self._device = spec, out, listener, device
        runs = runs_of(spec, out, trust=trust, repair=repair, stored=self._stored)
        # Checked on the CPU: this machine may lack the GPUs that the others have.
        self._jobs = [Job.of(run, Listener(), "cpu", trust, repair) for run in runs]
        self._data = runs[0].loaded
        self._told: list[_Told] = []
        self._runs: dict[str, Job] = {}
        self._members: dict[Path, list[str]] = {}
        self._settings = {"trust": trust, "repair": repair}
        self._found = [all(job.is_done(version) for version in job.versions) and not repair for job in self._jobs]

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Within, the run folders hold what was kept elsewhere, and nobody else works in them."""
        artifacts = self._spec.artifacts
        if artifacts is not None and not is_address(artifacts):
            raise InputError(f"artifacts must be an address such as s3://bucket/folder or file:///folder: {artifacts}.")
        with ExitStack() as locks:
            for number, job in enumerate(self._jobs):
                if artifacts is None:
                    # The workers take the lock; whoever has it now would only be found out by them after a while.
                    with job.folder.held(LINGER_SECONDS):
                        continue
                locks.enter_context(job.folder.held())
                if job.repair:
                    self._repair(self._place(job.folder), {SPEC: as_yaml(as_dict(job.spec))}, marked=True)
                self._bring(job)
                self._found[number] = all(map(job.is_done, job.versions)) and not job.repair
            yield

    def _repair(self, place: str, instead: Mapping[str, str], *, marked: bool) -> None:
        for lost in Storage(place).repair(instead, marked=marked):
            self._listener.note(f"{lost} is gone, or does not fit its checksum: it is made again.")

    def _bring(self, job: Job) -> None:
        """What is kept of a run into its folder; of a run that was begun in the folder, the other way."""
        storage, folder = Storage(self._place(job.folder)), job.folder.path
        files = storage.fetch(folder)
        if not files and any(entry.name != "lock" for entry in folder.iterdir()):
            put_folder(storage, folder, without="members")
            for home in folder.glob("members/*"):
                member = Storage(self._member_place(job, home))
                if not member.index()[1]:
                    put_folder(member, home)
        for state in folder.glob(f"versions/*/{STATE}"):
            if files and state.relative_to(folder).as_posix() not in files:
                state.unlink()

    def _stored(self, folder: RunFolder) -> TrainSpec | None:
        """What a run was begun with: as its folder has it, or the address where it is kept."""
        address = self._spec.artifacts
        if address is None or not is_address(address) or folder.stored() is not None:
            return folder.stored()
        with TemporaryDirectory() as home, suppress(DamagedFile):
            Storage(self._place(folder)).fetch(Path(home), only={SPEC})
            return RunFolder(Path(home)).stored()
        return None

    def _place(self, folder: RunFolder) -> str:
        """Where a run is kept: its folder, or a place of the folder's name at the artifacts' address."""
        if self._spec.artifacts is None:
            return str(folder.path.resolve())
        below = folder.path.relative_to(self._out).parts
        return joined(self._spec.artifacts, self._out.resolve().name, *below)

    def pieces(self) -> list[Piece]:
        """Everything that is not there yet, checked as `train` checks it."""
        found: dict[str, Piece] = {}
        for job, there in zip(self._jobs, self._found, strict=True):
            job.check_sources()
            job.folder.check(as_dict(job.spec))
            if there:
                continue
            job.rehearse()
            # Members come into the folder before its run begins.
            job.folder.adopt(as_dict(job.spec))
            own: dict[str, Piece] = {}
            for version in job.versions:
                held = version.method is not None and version.method.ensemble is not None
                if held and (job.repair or not job.is_done(version) or self._is_inherited(job, version)):
                    own |= self._version_members(job, version)
            found |= own
            run = self._run_piece(job, frozenset(own))
            self._runs[run.key] = job
            found[run.key] = run
        return list(found.values())

    @staticmethod
    def _is_inherited(job: Job, version: VersionPlan) -> bool:
        """Whether a later version is still to be held to its members."""
        return any(
            after.references == "ensemble"
            and not job.is_done(after)
            and inherited_from(job.versions, place).name == version.name
            for place, after in enumerate(job.versions)
        )

    def _version_members(self, job: Job, version: VersionPlan) -> dict[str, Piece]:
        """The version's members that are still to be trained, by their places."""
        assert version.method is not None
        if card_of(version.method).kind == "post-hoc":
            # They start from the version before, and are trained when that is there.
            return {}
        task = job.task(version, [], "cpu")
        assert task.ensemble.train is not None
        resources, device = self._needs(task.ensemble.train)
        told = _Told(self._label(job, task.name), version, task.ensemble.members)
        self._told.append(told)
        key = data_of(job.spec, version).model_dump_json()
        pieces = {}
        for _, plan, seeds in ensembles_of(task, device=device):
            for one, home in zip(seeds, member_homes(plan, task.data, seeds, task.members), strict=True):
                place = self._member_place(job, home)
                self._members.setdefault(job.folder.path, []).append(place)
                if not self._is_there(place, repair=job.repair):
                    told.places.add(place)
                    pieces[place] = Piece(place, train_one_member, (key, plan, one, place), self._data, resources)
        return pieces

    def _member_place(self, job: Job, home: Path) -> str:
        artifacts, shared = self._spec.artifacts, job.spec.members
        if artifacts is None:
            return str(home.resolve())
        return joined(shared if shared is not None and is_address(shared) else joined(artifacts, "members"), home.name)

    def _is_there(self, place: str, *, repair: bool) -> bool:
        if is_address(place):
            if repair:
                self._repair(place, {}, marked=False)
            return MEMBER in Storage(place).index()[1]
        if repair:
            clear_damaged_member(Path(place))
        return (Path(place) / MEMBER).exists()

    def _run_piece(self, job: Job, members: frozenset[str]) -> Piece:
        needs = [self._needs(version.train) for version in job.versions if version.train is not None]
        resources = Resources(
            max((each.cpus for each, _ in needs), default=1.0), max((each.gpus for each, _ in needs), default=0.0)
        )
        device = self._device or ("cuda" if resources.gpus else "cpu")
        place = self._place(job.folder)
        spec = job.spec.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        settings = {**self._settings, "device": device}
        arguments = (spec, place, self._members.get(job.folder.path, []), settings)
        return Piece(f"run {place}", train_run, arguments, self._data, resources, members)

    def _needs(self, train: TrainPlan) -> tuple[Resources, str]:
        """What a training takes, and the device it finds there: a GPU where one is asked for, in either way."""
        plan, wanted = train.resources or ResourcesPlan(), self._device or train.device
        gpus = plan.gpus or (1.0 if wanted.startswith("cuda") else 0.0)
        device = "cpu" if wanted == "cpu" or not gpus else "cuda"
        return Resources(plan.cpus, 0.0 if device == "cpu" else gpus), device

    def begin(self) -> None:
        """Tell of the whole job as of one run, in which each seed's versions are called after it."""
        versions = []
        for job in self._jobs:
            described = as_dict(job.spec)
            versions += [{**one, "name": self._label(job, one["name"])} for one in described["versions"]]
        self._listener.run_begins(str(self._out), {**as_dict(self._jobs[0].spec), "versions": versions})
        to_do = [job for job, found in zip(self._jobs, self._found, strict=True) if not found]
        for text in dict.fromkeys(text for job in to_do for text in job.notes):
            self._listener.note(text)
        for told in self._told:
            if told.places:
                self._begin_version(told)

    def _begin_version(self, told: _Told) -> None:
        method, train = told.version.method, told.version.train or TrainPlan()
        told.begun = True
        self._listener.version_begins(told.label, method.name if method else "none", train.epochs)
        self._listener.members(told.label, told.total - len(told.places), told.total)

    def _label(self, job: Job, version: str) -> str:
        return f"{job.folder.path.name}/{version}" if isinstance(self._spec.seed, list) else version

    def hear(self, event: Event) -> None:
        """What the pool tells, as a listener hears it of one run."""
        run = self._runs.get(event.key)
        if event.kind == "said" and run is not None:
            self._pass_on(run, *event.value)
        elif event.kind == "done" and run is None:
            for told in self._told:
                if event.key in told.places:
                    told.places.discard(event.key)
                    self._listener.members(told.label, told.total - len(told.places), told.total)
        elif event.kind in ("lost", "waits"):
            what = f"the run {run.folder.path}" if run is not None else f"member {name_of(event.key)}"
            self._listener.note(f"{what}: {event.value}")

    def _pass_on(self, job: Job, what: str, arguments: tuple[Any, ...]) -> None:
        if what == "note":
            self._listener.note(*arguments)
            return
        label = self._label(job, arguments[0])
        begun = any(told.begun and told.label == label for told in self._told)
        if what == "version_ends":
            self._listener.version_ends(label, found=arguments[1])
        elif not (begun and what in ("version_begins", "members")):
            # Of members that were trained before their version's turn, all has been told.
            getattr(self._listener, what)(label, *arguments[1:])

    def concluded(self) -> list[Outcome]:
        """Each run's outcome, from what lies in its folder now."""
        outcomes = []
        for job, found in zip(self._jobs, self._found, strict=True):
            folder = job.folder
            if self._spec.artifacts is not None:
                self._bring(job)
                for member in self._members.get(folder.path, []):
                    Storage(member).fetch(folder.members(None) / name_of(member))
            folder.adopt(as_dict(job.spec))
            with repairable(folder.path):
                names = [str(version.name) for version in job.versions]
                outcomes.append(conclude(folder, names, job.spec.gate, found=found))
        return outcomes
