"""Ray: a pool that spreads pieces of work over a cluster. Ray schedules and notices deaths; everything else is ours."""

import logging
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from flipguard._reach import unreachable
from flipguard._version import __version__
from flipguard.types import FlipguardError, InputError, MissingExtra

try:
    import ray
    import torch
    from ray import exceptions
except ModuleNotFoundError as error:
    raise MissingExtra(f"--on ray needs {error.name}; install it with: pip install 'flipguard[ray]'") from error

from flipguard.training import signals
from flipguard.training.errors import TrainingError
from flipguard.training.pool import Event, Hear, Piece, Queue

LOG = logging.getLogger("flipguard.training")
LIVES = 10
"""So many workers of one piece may die before it is given up: something kills every one of them."""

HEAR_SECONDS, LEAVE_SECONDS = 0.2, 30.0
_LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
)


def connected(on: str) -> "RayPool":
    """The pool of `--on`: "ray" for the cluster that RAY_ADDRESS names or this machine runs, else one that is started
    here; or the address of a cluster, HOST:PORT, ray://HOST:PORT."""
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if on != "ray" and not (host and port.isdigit()):
        raise InputError(f"--on {on}: give ray, or the address of a cluster as HOST:PORT or ray://HOST:PORT.")
    if on != "ray" and (reason := unreachable(host, int(port))) is not None:
        raise InputError(f"--on {on}: the cluster cannot be reached: {reason}.")
    _quieten()
    handlers = {number: signal.getsignal(number) for number in signals.STOPPING}
    try:
        ray.init(
            address=None if on == "ray" else on,
            logging_level=logging.ERROR,
            log_to_driver=False,
            ignore_reinit_error=True,
            **({"include_dashboard": False} if on == "ray" else {}),
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ImportError) as error:
        raise InputError(f"--on {on}: the cluster cannot be reached: {_line(error)}") from error
    finally:
        # Ray brings handlers of its own, which end this process at once.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return RayPool()


def _quieten() -> None:
    """Ray tells on this process's stdout of every worker that dies; the pool's events say so in one line."""
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, *_, **__: LOG.info("%s", "\n".join(data.get("lines", ())))


class RayPool:
    """Each piece is a task with its resources. One whose worker or machine dies is begun again elsewhere."""

    def run(self, pieces: Sequence[Piece], hear: Hear) -> None:
        queue, deaths = Queue(pieces), Counter()  # type: Queue, Counter[str]
        shared = {id(value): ray.put(value) for value in {id(p.shared): p.shared for p in pieces}.values()}
        post = ray.remote(_Post).options(num_cpus=0, max_restarts=-1).remote()
        running: dict[Any, Piece] = {}

        def begin(piece: Piece) -> None:
            needs = {"num_cpus": piece.resources.cpus, "num_gpus": piece.resources.gpus}
            task = _do.options(**needs, max_retries=0, name=piece.key)
            work = (piece.key, piece.call, piece.arguments, max(1, int(piece.resources.cpus)))
            running[task.remote(shared[id(piece.shared)], *work, post, _versions())] = piece

        try:
            # Ray would turn a signal that is raised within its calls into another error.
            with signals.at_work():
                for text, piece in _unfit(pieces):
                    hear(Event(piece.key, "waits", text))
                while queue:
                    signals.stop_if_asked()
                    for piece in queue.ready():
                        begin(piece)
                    finished, _ = ray.wait(list(running), num_returns=1, timeout=HEAR_SECONDS)
                    for key, value in _taken(post):
                        hear(Event(key, "said", value))
                    for reference in finished:
                        piece = running.pop(reference)
                        try:
                            value = _result(reference)
                        except _LOST as error:
                            deaths[piece.key] += 1
                            _check_lives(piece, deaths[piece.key], error)
                            hear(
                                Event(piece.key, "lost", f"{_reason(error)}; it goes on elsewhere from its last state.")
                            )
                            begin(piece)
                            continue
                        queue.done(piece.key)
                        hear(Event(piece.key, "done", value))
        except exceptions.RayError as error:
            raise TrainingError(f"the cluster is gone ({_line(error)}): the same command goes on.") from error
        except BaseException:
            _recall(list(running))
            raise
        finally:
            with suppress(Exception):
                ray.kill(post)


def _result(reference: Any) -> Any:
    """What a task returned, or its error as if it had been raised here."""
    try:
        failure, value = ray.get(reference)
    except exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise TrainingError(f"a worker failed: {type(cause).__name__}: {_line(cause)}") from error
    if failure is not None:
        raise failure
    return value


def _check_lives(piece: Piece, deaths: int, error: Exception) -> None:
    if deaths == LIVES:
        raise TrainingError(
            f"{LIVES} workers died over {piece.key}: {_reason(error)}. Give it more memory, or look at the cluster's "
            "logs; the same command goes on from the last state."
        ) from error


def _recall(references: list[Any]) -> None:
    """Ask tasks to stop; each saves where it is. Those that do not answer are ended."""
    for reference in references:
        with suppress(Exception):
            ray.cancel(reference, force=False)
    with suppress(Exception):
        _, left = ray.wait(references, num_returns=len(references), timeout=LEAVE_SECONDS)
        for reference in left:
            ray.cancel(reference, force=True)


def _unfit(pieces: Sequence[Piece]) -> Iterator[tuple[str, Piece]]:
    """Pieces that no machine of the cluster can do as it is; it may grow."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for piece in pieces:
        cpus, gpus = piece.resources.cpus, piece.resources.gpus
        if not any(one.get("CPU", 0) >= cpus and one.get("GPU", 0) >= gpus for one in machines):
            yield f"waits for a machine with {cpus:g} CPUs and {gpus:g} GPUs, which the cluster has not now.", piece


def _taken(post: Any) -> list[tuple[str, Any]]:
    """What the pieces have said since the last time; a post that died with its machine is started again, empty."""
    try:
        said: list[tuple[str, Any]] = ray.get(post.take.remote(), timeout=LEAVE_SECONDS)
        return said
    except (exceptions.RayActorError, exceptions.GetTimeoutError):
        return []


class _Post:
    """Where pieces leave what they say, until the one who runs them takes it."""

    def __init__(self) -> None:
        self._said: list[tuple[str, Any]] = []

    def leave(self, key: str, value: Any) -> None:
        self._said.append((key, value))

    def take(self) -> list[tuple[str, Any]]:
        said, self._said = self._said, []
        return said


def _versions() -> dict[str, str]:
    return {"flipguard": __version__, "torch": torch.__version__.split("+")[0]}


@ray.remote
def _do(
    shared: Any,
    key: str,
    call: Callable[..., Any],
    arguments: tuple[Any, ...],
    threads: int,
    post: Any,
    versions: dict[str, str],
) -> tuple[FlipguardError | None, Any]:
    """A piece, on a worker. Our own errors are returned: Ray would wrap them."""
    left: list[Any] = []

    def say(value: Any) -> None:
        left[:] = [post.leave.remote(key, value)]

    try:
        for name, here in _versions().items():
            if here != versions[name]:
                raise InputError(f"{name} is {versions[name]} here and {here} on a machine of the cluster.")
        torch.set_num_threads(threads)
        with signals.heeded():
            value = call(shared, *arguments, say=say)
        # What was said comes before that it is done.
        if left:
            ray.wait(left, timeout=HEAR_SECONDS * 50)
        return None, value
    except FlipguardError as error:
        return error, None
    except signals.Stopped:
        raise KeyboardInterrupt from None


def _reason(error: Exception) -> str:
    reasons = {
        exceptions.OutOfMemoryError: "its worker ran out of memory",
        exceptions.NodeDiedError: "its machine was lost",
        exceptions.ObjectLostError: "its data were lost with a machine",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), "its worker died")


def _line(error: BaseException) -> str:
    return f"{' '.join(str(error).split())[:200].rstrip('.') or type(error).__name__}."
