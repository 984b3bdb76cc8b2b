"""A resolved spec at work in its folder: versions in order, each trained once, found again when they are there."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.data import DataSet
from flipguard.releases import material
from flipguard.releases.folder import CARD, MODEL, RUN, SPEC, RunFolder, made, read_json, version_home
from flipguard.releases.given import given_release
from flipguard.releases.heritage import has_heritage, inherited_from, source_of
from flipguard.releases.listener import Listener
from flipguard.releases.plan import DataPlan, TrainPlan, TrainSpec, VersionPlan
from flipguard.releases.provenance import versions_used
from flipguard.releases.recorded import Recorded
from flipguard.releases.references import Earlier, Task, learned_from, members, members_are_there
from flipguard.releases.rehearsal import rehearse, rehearse_given
from flipguard.releases.release import Release, load_release
from flipguard.releases.repair import clear_damage, is_broken, told
from flipguard.releases.resolved import data_of, resolve
from flipguard.releases.trust import check_spec
from flipguard.releases.version import help_make, keep_earlier, keep_predictions, make_version
from flipguard.training.distributed import wait_for
from flipguard.training.storage import is_address
from flipguard.types import InputError


@dataclass(frozen=True)
class Run:
    """What is to be trained in a folder, by one seed: a resolved spec, and what is told before it begins."""

    spec: TrainSpec
    folder: RunFolder
    notes: tuple[str, ...] = ()
    loaded: dict[str, DataSet] = field(default_factory=dict, compare=False)
    """Data that were looked at on the way, which are not to be loaded again."""


class _NotTold(InputError):
    """Another run does not say what a version of it learned from."""


def _begun_with(folder: RunFolder) -> TrainSpec:
    """The spec of another run."""
    stored = folder.stored()
    with suppress(InputError):
        if stored is not None:
            return resolve(stored)
    raise _NotTold(f"{folder.path / SPEC} does not tell which ensemble a version learned from.")


@dataclass
class Job:
    """A resolved spec at work in a folder."""

    spec: TrainSpec
    folder: RunFolder
    listener: Listener
    device: str | None = None
    trust: bool = False
    repair: bool = False
    lost: dict[str, list[Path]] = field(default_factory=dict)
    loaded: dict[str, DataSet] = field(default_factory=dict)
    """The data by its plan as JSON: what several versions, or several jobs, share is loaded once."""
    notes: tuple[str, ...] = ()
    """What is told before the work begins."""

    @classmethod
    def of(
        cls, run: Run, listener: Listener, device: str | None = None, trust: bool = False, repair: bool = False
    ) -> "Job":
        return cls(run.spec, run.folder, listener, device, trust, repair, loaded=run.loaded, notes=run.notes)

    @property
    def versions(self) -> list[VersionPlan]:
        return list(self.spec.versions or [])

    def is_done(self, version: VersionPlan) -> bool:
        return (self.folder.version(str(version.name)) / CARD).exists()

    def data(self, version: VersionPlan) -> tuple[DataPlan, DataSet]:
        """The version's data, loaded once for all versions that share it."""
        plan = data_of(self.spec, version, f"version {version.name}")
        key = plan.model_dump_json()
        if key not in self.loaded:
            self.loaded[key] = material.load(plan)
        return plan, self.loaded[key]

    def fingerprints(self) -> dict[str, dict[str, str]]:
        return {
            str(version.name): {part: data.fingerprint(part) for part in data.parts()}
            for version in self.versions
            for _, data in [self.data(version)]
        }

    def check_sources(self) -> None:
        """A version from elsewhere cannot come from this run, nor start from itself or a later one.

        Code comes only where it is trusted.
        """
        check_spec(self.spec, trust=self.trust)
        own, before = self.folder.path.resolve(), []  # type: Path, list[Path]
        for version in self.versions:
            for source in (version.run, version.checkpoint, version.predictions):
                if source is not None and Path(source).resolve().is_relative_to(own):
                    raise InputError(
                        f"version {version.name}: {source} lies in this run's own folder, and a version cannot come "
                        "from its own run."
                    )
            start = version.model.options.get("init") if version.model is not None else None
            inside = isinstance(start, str) and Path(start).resolve().is_relative_to(own)
            if inside and not any(Path(str(start)).resolve().is_relative_to(home) for home in before):
                raise InputError(
                    f"version {version.name}: init {start} is no earlier version of this run, and a version cannot "
                    "start from itself or from what comes after it."
                )
            before.append(self.folder.version(str(version.name)).resolve())

    def clear_damage(self) -> None:
        """Everything that the folder holds; a version's members are looked through when its turn comes."""
        if is_broken(self.folder.path / RUN):
            (self.folder.path / RUN).unlink()
        for version in self.versions:
            name = str(version.name)
            cleared = clear_damage(self.folder.version(name))
            held = version.method is not None and version.method.ensemble is not None
            if cleared or held:
                self.lost[name] = cleared
            for path in cleared:
                self.listener.note(told(path))

    def check_data(self, begun: dict[str, dict[str, str]]) -> None:
        """The samples are those that the run was begun with."""
        for name, parts in self.fingerprints().items():
            for part, now in parts.items():
                then = begun.get(name, {}).get(part, now)
                if then != now:
                    raise InputError(
                        f"{self.folder.path}: the {part} samples of '{name}' are not those that the run was begun with "
                        f"({then}, now {now}): bring them back, or give another --out."
                    )

    def task(self, version: VersionPlan, earlier: list[Earlier], device: str, *, trained: bool = True) -> Task:
        """A version's task; not `trained`, it is a rehearsal's, and what it is held to may be untrained."""
        plan, data = self.data(version)
        home = self.folder.version(str(version.name))
        members = self.folder.members(self.spec.members)
        heritage = None
        if version.references == "ensemble":
            before = inherited_from(self.versions, self._place_of(version))
            heritage = partial(self._heritage, before, device, trained=trained)
        return Task(version, plan, data, tuple(earlier), home, members, device, self.listener, self.repair, heritage)

    def _place_of(self, version: VersionPlan) -> int:
        return [str(one.name) for one in self.versions].index(str(version.name))

    def _heritage(self, before: VersionPlan, device: str, *, trained: bool) -> list[Release]:
        """The ensemble that a version learned from: of this run, or of the run that it comes from."""
        if before.run is None:
            task = self.task(before, [], device)
            if trained and self.is_done(before) and not members_are_there(task):
                self.listener.note(f"members that '{before.name}' learned from are gone: they are trained again.")
            return learned_from(task, trained=trained)
        if self.is_done(before):
            self._check_source(before)
        there, version = self._whence(before.run)
        return there.left_by(version, device, trained=trained)

    def _whence(self, run: str) -> tuple["Job", VersionPlan]:
        """Another run, and which of its versions a version of this one is."""
        home = version_home(Path(run)).resolve()
        folder = RunFolder(home.parent.parent)
        spec = _begun_with(folder)
        if spec.members is not None and is_address(spec.members):
            # What machines kept elsewhere was brought into the folder in the end.
            spec = spec.model_copy(update={"members": None})
        # Another run's versions have names of their own, of which this one's listener knows nothing.
        there = Job(spec, folder, Listener(), self.device, self.trust, loaded=self.loaded)
        check_spec(there.spec, trust=self.trust)
        version = next((one for one in there.versions if one.name == home.name), None)
        if version is None or home.parent.name != "versions":
            raise _NotTold(f"references: ensemble: '{home.name}' of {folder.path} did not learn from an ensemble.")
        return there, version

    def members_left(self, version: VersionPlan, *, look: bool = True) -> bool | None:
        """Whether the members are to be had that a version learned from; None where none are known of.

        Those of a version of this run that is still to be trained, or to be repaired, will be there. Without a `look`
        what there should be is taken to be there.
        """
        source = source_of(self.versions, self._place_of(version))
        if source.run is None:
            if not has_heritage(source):
                return None
            to_come = not self.is_done(source) or self.repair
            return to_come or not look or members_are_there(self.task(source, [], "cpu"))
        try:
            there, inner = self._whence(source.run)
        except _NotTold:
            return None
        # What that run says of its own sources is for this one to know, not for its user.
        with suppress(InputError):
            if look and self.is_done(source):
                self._check_source(source)
            return there.members_left(inner, look=look)
        return False

    def left_by(self, version: VersionPlan, device: str, *, trained: bool) -> list[Release]:
        """The ensemble that a version of this run learned from, for another run: here nothing is trained any more."""
        source = source_of(self.versions, self._place_of(version))
        if source.run is not None:
            return self._heritage(source, device, trained=trained)
        if not has_heritage(source):
            raise InputError(
                f"references: ensemble: '{version.name}' of {self.folder.path} did not learn from an ensemble."
            )
        task = self.task(source, [], device)
        if not members_are_there(task):
            raise InputError(
                f"references: ensemble: the members of '{source.name}' are not in {task.members} any more."
            )
        return learned_from(task, trained=trained)

    def _check_source(self, version: VersionPlan) -> None:
        """The run that a version came from may have been named by a path from another folder than this."""
        homes = (self.folder.version(str(version.name)), version_home(Path(str(version.run))))
        ours, theirs = (load_checkpoint(home / MODEL)[0] for home in homes)
        if ours.keys() != theirs.keys() or any(not torch.equal(value, theirs[name]) for name, value in ours.items()):
            raise InputError(
                f"references: ensemble: '{version.name}' of {self.folder.path} came from {version.run}, and that holds "
                "other weights when read from here: call this from the folder where that run was named."
            )

    def rehearse(self) -> None:
        """Every version that is still to be trained, on untrained networks."""
        earlier: list[Earlier] = []
        for version in self.versions:
            task = self.task(version, earlier, "cpu", trained=False)
            if version.model is not None and version.checkpoint is None:
                self._device_of(version)
                if not self.is_done(version):
                    rehearse(task, f"version {version.name}")
                network = material.build(material.model_spec(version.model), len(task.data.classes), 0, "model")
                model = material.model_spec(version.model)
                scale, encoder = task.data.normalisation, task.data.encoder
                earlier.append(Release(task.name, network, model, task.data.classes, scale, encoder=encoder))
            else:
                given = self._given(task)
                if isinstance(given, Release) and not self.is_done(version):
                    rehearse_given(task, given, f"version {version.name}")
                earlier.append(given)

    def work(self) -> None:
        """Train what is not there yet; run.json tells how it went."""
        began, before = time.perf_counter(), float(self.folder.facts().get("seconds", 0.0))
        self.folder.note({"status": "running", "versions": versions_used(), "data": self.fingerprints()})
        status = "stopped"
        try:
            self._train()
            status = "finished"
        finally:
            # On a full disk this fails too, and must not hide the first error.
            with suppress(InputError):
                seconds = round(before + time.perf_counter() - began, 3)
                self.folder.note({"status": status, "seconds": seconds})

    def _train(self) -> None:
        earlier: list[Earlier] = []
        for version in self.versions:
            task = self.task(version, earlier, self._device_of(version))
            found = self.is_done(version)
            if found:
                earlier.append(self._found(task))
                self._mend(task, earlier[-1])
            elif version.model is not None and version.checkpoint is None:
                self.listener.version_begins(task.name, task.method.name, (version.train or TrainPlan()).epochs)
                earlier.append(make_version(task))
            else:
                earlier.append(self._adopted(task))
            self.listener.version_ends(task.name, found=found)

    def follow(self) -> None:
        """The same versions in the same order; what the first process has written is read back."""
        earlier: list[Earlier] = []
        for version in self.versions:
            task = self.task(version, earlier, self._device_of(version))
            if not self.is_done(version) and version.model is not None and version.checkpoint is None:
                help_make(task)
            wait_for(task.home / CARD)
            earlier.append(self._found(task))

    def _mend(self, task: Task, version: Earlier) -> None:
        """What a finished version lost beside its weights, from them."""
        if task.name not in self.lost:
            return
        if isinstance(version, Recorded):
            version.keep(task.home, task.data)
            return
        keep_predictions(version, task, missing=True)
        keep_earlier(task)
        if task.method.ensemble is not None:
            members(task)

    def _device_of(self, version: VersionPlan) -> str:
        return material.device_of(self.device or (version.train or TrainPlan()).device)

    def _found(self, task: Task) -> Earlier:
        card = read_json(task.home / CARD)
        if card.get("kind") == "predictions":
            return Recorded.load(task.home, str(card.get("source")))
        return load_release(task.home, trust=self.trust)

    def _adopted(self, task: Task) -> Earlier:
        """A version from elsewhere, copied into this folder, so that the run goes on without its source."""
        given = self._given(task)
        made(task.home)
        if isinstance(given, Recorded):
            given.keep(task.home, task.data)
            return given
        given.save(task.home)
        keep_predictions(given, task)
        keep_earlier(task)
        given.finish(task.home)
        return given

    def _given(self, task: Task) -> Earlier:
        version = task.version
        if self.is_done(version):
            return self._found(task)
        if version.predictions is not None:
            recorded = Recorded.read(task.name, version.predictions)
            recorded.check(task.data)
            return recorded
        return given_release(task, trust=self.trust)
