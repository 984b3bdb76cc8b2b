"""The members of an ensemble: replicas by seed, side by side on the CPU, kept for the next run that needs them."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from flipguard._version import __version__
from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.data import Augmentation, DataSet, ImageFiles
from flipguard.methods import NoTreatment
from flipguard.training.capture import CannotCapture
from flipguard.training.choice import measured_engine, stored_engine
from flipguard.training.distributed import alone, own_device, place, wait_for
from flipguard.training.engines import JOINT, Engine, check_engine, engine_to_use, for_one
from flipguard.training.kept import kept_at
from flipguard.training.loop import Run
from flipguard.training.network import ModelSpec, Seeds, begin_network, described
from flipguard.training.pool import Event, Here, Piece, Pool, Resources
from flipguard.training.processes import Processes
from flipguard.training.recipe import Recipe
from flipguard.training.threads import one_thread
from flipguard.training.waves import in_groups, in_waves
from flipguard.types import DamagedFile, InputError, Method

LOG = logging.getLogger("flipguard.training")
MEMBER, STATE = "member.safetensors", "state.safetensors"


@dataclass(frozen=True)
class MemberPlan:
    """What all members of an ensemble have in common, beside their data."""

    model: ModelSpec
    recipe: Recipe
    method: Method
    augmentation: Augmentation | None
    device: str
    checkpoint_every: int
    engine: Engine = "auto"


def fit_members(
    model: ModelSpec,
    data: DataSet,
    recipe: Recipe,
    seeds: Sequence[Seeds | int],
    *,
    folder: str | Path | None = None,
    processes: int | None = None,
    method: Method | None = None,
    augmentation: Augmentation | None = None,
    device: str = "cpu",
    checkpoint_every: int = 200,
    engine: Engine = "auto",
    on_member: Callable[[int, int], None] | None = None,
    repair: bool = False,
    load: Sequence[bool] | None = None,
) -> list[nn.Module]:
    """One trained network per seed, in the order of the seeds, in evaluation mode on the CPU.

    With a folder each member is kept in `folder/<key>/`, the key a hash of the data, the model, the recipe, the method
    and the seeds: a member that is there is not trained again, one that was cut off goes on where it was. On the CPU
    `processes` of them run at a time (by default as many as there are threads), each with one thread, so that the
    weights do not depend on how many run. On a GPU they are trained by the `engine` that a short measurement finds
    fastest, eight at a time or as many as fit into memory, and those that were cut off by the one that they were begun
    with. Under a launcher each process trains its share of the members by itself, and takes the others from the folder:
    they are those of one process. `on_member` hears how many are done, out of how many. A kept member whose file is
    damaged is an error, or with `repair` trained again. `load` says of each member whether it is to be returned, where
    all are to be trained and only some are needed here.
    """
    spread = [Seeds.of(seed) if isinstance(seed, int) else seed for seed in seeds]
    if not spread or len(set(spread)) != len(spread):
        raise InputError(f"each member of an ensemble needs a seed of its own, got {list(seeds)}.")
    if processes is not None and processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}.")
    check_engine(engine)
    # Without a folder that all see, each process of a team trains every member.
    rank, world = place() if folder is not None else (0, 1)
    device = own_device(device)
    plan = MemberPlan(model, recipe, method or NoTreatment(), augmentation, device, checkpoint_every, engine)
    kept = nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="flipguard-")
    # The caller's own draws must not depend on how many members were trained here.
    with kept as home_of_all, torch.random.fork_rng(devices=[]), alone():
        # The content of the data matters only for members that outlive this call.
        homes = member_homes(plan, data, spread, Path(home_of_all), content=folder is not None)
        members = list(zip(spread, homes, strict=True))
        if repair:
            for home in homes[rank::world]:
                clear_damaged_member(home)
        there = sum((home / MEMBER).exists() for home in homes)
        mine = [(one, home) for one, home in members[rank::world] if not (home / MEMBER).exists()]
        done = _Progress(there, len(spread), on_member)
        if mine:
            plan = replace(plan, engine=_engine(plan, data, mine, homes))
            _train_all(plan, data, mine, 1 if world > 1 else processes, done)
        for home in homes:
            wait_for(home / MEMBER)
        done.all()
        wanted = load or [True] * len(members)
        return [_load(plan, data, one, home) for (one, home), here in zip(members, wanted, strict=True) if here]


def member_homes(
    plan: MemberPlan, data: DataSet, seeds: Sequence[Seeds], folder: Path, *, content: bool = True
) -> list[Path]:
    """The folder of each member, called by its key: what it holds decides its name."""
    digest = _content(data) if content else ""
    return [folder / _key(plan, data, digest, one) for one in seeds]


def member_piece(
    plan: MemberPlan, data: DataSet, seeds: Seeds, place: str, resources: Resources | None = None
) -> Piece:
    """The training of one member as work for any pool; it is kept at `place`, a folder or a storage's address."""
    return Piece(place, train_member, (plan, seeds, place), data, resources or Resources())


def train_member(data: DataSet, plan: MemberPlan, seeds: Seeds, place: str, *, say: Callable[[Any], None]) -> None:
    """A member to its file, with one thread on the CPU wherever that is: the bits depend on how many there are."""
    with one_thread() if plan.device == "cpu" else nullcontext(), kept_at(place) as home:
        _train(plan, data, seeds, home)


def _train_all(
    plan: MemberPlan, data: DataSet, todo: list[tuple[Seeds, Path]], processes: int | None, done: "_Progress"
) -> None:
    if plan.engine in JOINT:
        try:
            _on_one_device(plan, data, todo, done)
            return
        except CannotCapture as reason:
            plan = replace(plan, engine="plain" if plan.device == "cpu" else "captured")
            LOG.warning(
                "%s: %s.", "each member in a process of its own" if plan.device == "cpu" else plan.engine, reason
            )
            todo = [(one, home) for one, home in todo if not (home / MEMBER).exists()]
    if plan.device != "cpu":
        _on_one_device(plan, data, todo, done)
        return
    together = min(processes or torch.get_num_threads(), len(todo))
    pool: Pool = Processes(together) if together > 1 else Here()

    def hear(event: Event) -> None:
        if event.kind == "done":
            done.more()

    pool.run([member_piece(plan, data, one, str(home)) for one, home in todo], hear)


def _engine(plan: MemberPlan, data: DataSet, todo: list[tuple[Seeds, Path]], homes: Sequence[Path]) -> Engine:
    """The engine that was asked for, that these members were begun with, or that is the fastest."""
    on_cpu = plan.device == "cpu"
    # On the CPU a finished member binds nobody: each of the others is trained to the same bits in any company.
    kept = [home / STATE for _, home in todo] + ([] if on_cpu else [home / MEMBER for home in homes])
    stored = stored_engine(kept)
    engine = engine_to_use(plan.engine, stored)
    if on_cpu and engine == "captured":
        LOG.warning("each member in a process of its own: the engine captured needs a GPU.")
    if on_cpu and engine in ("auto", "captured"):
        return "plain"
    if engine != "auto":
        if plan.engine == "auto":
            LOG.info("engine: %s, by which these members were begun", engine)
        return engine
    on_device = replace(data, train=data.train.to(plan.device))

    def begin(one: tuple[Seeds, Path], engine: Engine) -> Run:
        return _begin(replace(plan, engine=engine), on_device, one[0], None)

    return measured_engine(todo, begin, plan.device).engine


def clear_damaged_member(home: Path) -> None:
    """Remove a member, or the state of one, that is not what was written, and name it."""
    for path in (home / MEMBER, home / STATE):
        try:
            if path.exists():
                load_checkpoint(path)
        except DamagedFile:
            LOG.warning("%s was damaged, and is made again.", path)
            path.unlink()


def _key(plan: MemberPlan, data: DataSet, digest: str, seeds: Seeds) -> str:
    """Twelve hexadecimal digits that change with anything that decides a member's weights."""
    text = json.dumps({"content": digest, **_facts(plan, data, seeds)}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _facts(plan: MemberPlan, data: DataSet, seeds: Seeds) -> dict[str, Any]:
    return described(plan.model, data, plan.method, plan.recipe, seeds, plan.augmentation)


def _content(data: DataSet) -> str:
    """A hash of the training inputs themselves; the fingerprint knows only ids and labels."""
    x = data.train.x
    hashed = hashlib.blake2b(digest_size=8)
    if isinstance(x, ImageFiles):
        # The fingerprint stands for the files; how they are decoded is not in it.
        hashed.update(f"{x.size} {x.resize} {x.scale}".encode())
    parts: Mapping[str, Any] = x if isinstance(x, dict) else {"x": x}
    for name, value in sorted(parts.items()):
        hashed.update(name.encode())
        if isinstance(value, Tensor):
            hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hashed.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


@dataclass
class _Progress:
    done: int
    total: int
    tell: Callable[[int, int], None] | None

    def __post_init__(self) -> None:
        self._say()

    def more(self, number: int = 1) -> None:
        self.done += number
        self._say()

    def all(self) -> None:
        if self.done < self.total:
            self.done = self.total
            self._say()

    def _say(self) -> None:
        if self.tell is not None:
            self.tell(self.done, self.total)


def _begin(plan: MemberPlan, data: DataSet, seeds: Seeds, home: Path | None) -> Run:
    """One member, from its last saved state if there is one; without a home nothing of it is saved."""
    return begin_network(
        plan.model,
        data,
        plan.method,
        plan.recipe,
        seeds=seeds,
        augmentation=plan.augmentation,
        device=plan.device,
        checkpoint=None if home is None else home / STATE,
        checkpoint_every=plan.checkpoint_every,
        engine=plan.engine,
    )


def _train(plan: MemberPlan, data: DataSet, seeds: Seeds, home: Path) -> None:
    """One member to its file. Another run that shares the folder may be at it: then this one waits, and finds it."""
    with _held(home):
        if (home / MEMBER).exists():
            return
        run = _begin(replace(plan, engine=for_one(plan.engine)), data, seeds, home)
        for _ in run.updates():
            pass
        _keep(plan, data, seeds, home, run)


@contextmanager
def _held(home: Path) -> Iterator[None]:
    """Within, no other process works on this member. The lock goes with its holder, however that ends."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = os.open(home, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"the member {home} cannot be written: {error.strerror or error}.") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _keep(plan: MemberPlan, data: DataSet, seeds: Seeds, home: Path, run: Run) -> None:
    how = {"engine": run.state.engine, "versions": {"flipguard": __version__, "torch": torch.__version__}}
    save_checkpoint(home / MEMBER, run.released().state_dict(), {**_facts(plan, data, seeds), **how})
    _drop_state(home)


def _drop_state(home: Path) -> None:
    """The state of a member that is done; where one was left and the folder can only be read, it stays."""
    with suppress(OSError):
        (home / STATE).unlink(missing_ok=True)


def _on_one_device(plan: MemberPlan, data: DataSet, todo: list[tuple[Seeds, Path]], done: _Progress) -> None:
    """Members that share a device, in turns or in one step, as many at a time as fill it and its memory holds."""
    data = replace(data, train=data.train.to(plan.device))

    def begin(one: tuple[Seeds, Path]) -> Run:
        return _begin(plan, data, *one)

    joint = plan.engine in JOINT
    for wave, _ in in_groups(todo, begin, plan.engine, plan.device) if joint else in_waves(todo, begin, plan.device):
        for (seeds, home), run in wave:
            _keep(plan, data, seeds, home, run)
        # All at once: told one by one, the first would seem to have taken the time of all.
        done.more(len(wave))


def _load(plan: MemberPlan, data: DataSet, seeds: Seeds, home: Path) -> nn.Module:
    tensors, _ = load_checkpoint(home / MEMBER)
    # A process that was stopped right after it had written the member may have left it.
    _drop_state(home)
    network = plan.model.for_method(plan.method).build(len(data.classes), seeds.initialisation)
    return load_weights(network, tensors, home / MEMBER).eval()
