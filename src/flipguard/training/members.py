"""The members of an ensemble: replicas by seed, side by side on the CPU, kept for the next run that needs them."""

import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from flipguard._version import __version__
from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.data import Augmentation, DataSet
from flipguard.methods import NoTreatment
from flipguard.training import signals
from flipguard.training.distributed import alone, own_device, place, wait_for
from flipguard.training.loop import Engine, Run, TrainingError
from flipguard.training.network import ModelSpec, Seeds, begin_network, described
from flipguard.training.recipe import Recipe
from flipguard.training.waves import in_waves
from flipguard.types import DamagedFile, InputError, Method

LOG = logging.getLogger("flipguard.training")
MEMBER, STATE = "member.safetensors", "state.safetensors"


@dataclass(frozen=True)
class _Work:
    """What every member has in common."""

    model: ModelSpec
    data: DataSet
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
) -> list[nn.Module]:
    """One trained network per seed, in the order of the seeds, in evaluation mode on the CPU.

    With a folder each member is kept in `folder/<key>/`, the key a hash of the data, the model, the recipe, the method
    and the seeds: a member that is there is not trained again, one that was cut off goes on where it was. On the CPU
    `processes` of them run at a time (by default as many as there are threads), each with one thread, so that the
    weights do not depend on how many run; on a GPU they take turns, each captured step on a stream of its own, as many
    at a time as fit into memory. Under a launcher each process trains its share of the members by itself, and takes the
    others from the folder: they are those of one process. `on_member` hears how many are done, out of how many. A kept
    member whose file is damaged is an error, or with `repair` trained again.
    """
    spread = [Seeds.of(seed) if isinstance(seed, int) else seed for seed in seeds]
    if not spread or len(set(spread)) != len(spread):
        raise InputError(f"each member of an ensemble needs a seed of its own, got {list(seeds)}.")
    if processes is not None and processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}.")
    # Without a folder that all see, each process of a team trains every member.
    rank, world = place() if folder is not None else (0, 1)
    device = own_device(device)
    work = _Work(model, data, recipe, method or NoTreatment(), augmentation, device, checkpoint_every, engine)
    kept = nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="flipguard-")
    # The caller's own draws must not depend on how many members were trained here.
    with kept as home_of_all, torch.random.fork_rng(devices=[]), alone():
        # The content of the data matters only for members that outlive this call.
        digest = _content(data) if folder is not None else ""
        homes = [Path(home_of_all) / member_key(work, digest, one) for one in spread]
        members = list(zip(spread, homes, strict=True))
        if repair:
            for home in homes[rank::world]:
                _clear_damage(home)
        there = sum((home / MEMBER).exists() for home in homes)
        mine = [(one, home) for one, home in members[rank::world] if not (home / MEMBER).exists()]
        done = _Progress(there, len(spread), on_member)
        _train_all(work, mine, 1 if world > 1 else processes, done)
        for home in homes:
            wait_for(home / MEMBER)
        done.all()
        return [_load(work, one, home) for one, home in members]


def _train_all(work: _Work, todo: list[tuple[Seeds, Path]], processes: int | None, done: "_Progress") -> None:
    if work.device != "cpu":
        _on_one_device(work, todo, done)
        return
    together = min(processes or torch.get_num_threads(), len(todo))
    if together > 1:
        _side_by_side(work, todo, together, done)
        return
    for one, home in todo:
        _train_alone(work, one, home)
        done.more()


def _clear_damage(home: Path) -> None:
    """Remove a member, or the state of one, that is not what was written."""
    for path in (home / MEMBER, home / STATE):
        try:
            if path.exists():
                load_checkpoint(path)
        except DamagedFile:
            path.unlink()


def member_key(work: _Work, digest: str, seeds: Seeds) -> str:
    """Twelve hexadecimal digits that change with anything that decides a member's weights."""
    text = json.dumps({"content": digest, **_facts(work, seeds)}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _facts(work: _Work, seeds: Seeds) -> dict[str, Any]:
    return described(work.model, work.data, work.method, work.recipe, seeds, work.augmentation)


def _content(data: DataSet) -> str:
    """A hash of the training inputs themselves; the fingerprint knows only ids and labels."""
    x = data.train.x
    hashed = hashlib.blake2b(digest_size=8)
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

    def more(self) -> None:
        self.done += 1
        self._say()

    def all(self) -> None:
        if self.done < self.total:
            self.done = self.total
            self._say()

    def _say(self) -> None:
        if self.tell is not None:
            self.tell(self.done, self.total)


def _begin(work: _Work, seeds: Seeds, home: Path) -> Run:
    """One member, from its last saved state if there is one."""
    return begin_network(
        work.model,
        work.data,
        work.method,
        work.recipe,
        seeds=seeds,
        augmentation=work.augmentation,
        device=work.device,
        checkpoint=home / STATE,
        checkpoint_every=work.checkpoint_every,
        engine=work.engine,
    )


def _train(work: _Work, seeds: Seeds, home: Path) -> None:
    """One member to its file. Another run that shares the folder may be at it: then this one waits, and finds it."""
    with _held(home):
        if (home / MEMBER).exists():
            return
        run = _begin(work, seeds, home)
        for _ in run.updates():
            pass
        _keep(work, seeds, home, run.released())


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


def _keep(work: _Work, seeds: Seeds, home: Path, network: nn.Module) -> None:
    versions = {"flipguard": __version__, "torch": torch.__version__}
    save_checkpoint(home / MEMBER, network.state_dict(), {**_facts(work, seeds), "versions": versions})
    (home / STATE).unlink(missing_ok=True)


def _train_alone(work: _Work, seeds: Seeds, home: Path) -> None:
    """In this process, with one thread on the CPU, as it would be in one of its own."""
    threads = torch.get_num_threads()
    try:
        if work.device == "cpu":
            torch.set_num_threads(1)
        _train(work, seeds, home)
    finally:
        torch.set_num_threads(threads)


_shared: _Work | None = None


def _enter(work: _Work) -> None:
    global _shared
    begin_worker()
    _shared = work


def begin_worker() -> None:
    """A process that trains for another: one thread, its parent's signals, and no life after its parent's.

    A worker whose parent was killed would go on, beside the run that is started in its place.
    """
    torch.set_num_threads(1)
    signals.heeded_by_worker()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train_shared(seeds: Seeds, home: Path) -> None:
    assert _shared is not None
    _train(_shared, seeds, home)


def _on_one_device(work: _Work, todo: list[tuple[Seeds, Path]], done: _Progress) -> None:
    """Members that take turns on one device, as many at a time as its memory holds."""
    work = replace(work, data=replace(work.data, train=work.data.train.to(work.device)))
    for wave, _ in in_waves(todo, lambda one: _begin(work, *one), work.device):
        for (seeds, home), run in wave:
            _keep(work, seeds, home, run.released())
            done.more()


def _side_by_side(work: _Work, todo: list[tuple[Seeds, Path]], processes: int, done: _Progress) -> None:
    """Each process gets the data once, through shared memory: torch's own pickling moves tensors there."""
    context: BaseContext = torch.multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, initializer=_enter, initargs=(work,)) as pool:
        try:
            for future in as_completed([pool.submit(_train_shared, one, home) for one, home in todo]):
                future.result()
                done.more()
        except BrokenProcessPool as error:
            raise TrainingError(
                "a member's process ended before it was done (out of memory, perhaps): run again with fewer processes; "
                "in a script, call this under `if __name__ == '__main__':`, as each process imports the script."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # A signal reaches this process alone, and leaving the pool waits for members that take hours: each saves
            # where it is and ends.
            for worker in set(multiprocessing.active_children()) - before:
                worker.terminate()
            raise


def _load(work: _Work, seeds: Seeds, home: Path) -> nn.Module:
    tensors, _ = load_checkpoint(home / MEMBER)
    network = work.model.for_method(work.method).build(len(work.data.classes), seeds.initialisation)
    return load_weights(network, tensors, home / MEMBER).eval()
