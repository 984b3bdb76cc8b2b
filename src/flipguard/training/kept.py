"""A folder to work in that is kept elsewhere: worked on in a scratch folder of this machine, mirrored as it changes."""

import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from flipguard.training.storage import Files, Storage, TakenOver, facts_of, is_address
from flipguard.types import DamagedFile, InputError

LOG = logging.getLogger("flipguard.training")
MIRROR_SECONDS = 1.0
LAST_TRIES = (1.0, 2.0, 4.0, 8.0, 16.0)
_NOT_KEPT = {"lock"}
SCRATCH = "flipguard-kept-"
"""Folders of this name and a process's number go when that process is gone."""


@contextmanager
def kept_at(place: str, *, without: Collection[str] = ()) -> Iterator[Path]:
    """A folder to work in: the path itself, or of an address a scratch folder with what is kept there, mirrored.

    `without` are folders within that are not kept.
    """
    if not is_address(place):
        yield Path(place)
        return
    storage = Storage(place)
    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        if not _taken_up(place, storage.index()[0], home):
            storage.fetch(home)
        with _Mirror(storage, home, without).running():
            try:
                yield home
            except DamagedFile as error:
                raise DamagedFile(str(error).replace(str(home), place), error.path) from error
            except InputError as error:
                raise InputError(str(error).replace(str(home), place)) from error


def _left_at(place: str) -> Path:
    digest = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"flipguard-left-{os.getuid()}-{digest}")


def _leave(place: str, number: int, home: Path) -> Path | None:
    """Work that a storage did not take stays on this machine, with the number of the index that it goes on from."""
    left = _left_at(place)
    try:
        shutil.rmtree(left, ignore_errors=True)
        left.mkdir(mode=0o700)
        home.rename(left / "home")
        (left / "number").write_text(f"{number}", encoding="utf-8")
    except OSError:
        return None
    return left


def _taken_up(place: str, number: int, home: Path) -> bool:
    """Whether there was such work, and the storage is still where it left off: it then lies in `home`."""
    left = _left_at(place)
    try:
        # Nobody else's: the name can be guessed.
        if left.is_symlink() or left.stat().st_uid != os.getuid():
            return False
        fits = int((left / "number").read_text(encoding="utf-8")) == number
        if fits:
            (left / "home").rename(home)
    except (OSError, ValueError):
        return False
    shutil.rmtree(left, ignore_errors=True)
    return fits


def _sweep() -> None:
    """Remove scratch folders whose process was killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        pid = left.name.removeprefix(SCRATCH).split("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


class _Mirror:
    """Puts a folder's changes on its storage while somebody works in it."""

    def __init__(self, storage: Storage, home: Path, without: Collection[str] = ()) -> None:
        self._storage, self._home, self._without = storage, home, without
        self._before = storage.index()
        self._seen: dict[str, tuple[int, ...]] = dict.fromkeys(self._before[1], ())
        # Hard links to files as they were at one moment: a file that is written anew gets another inode.
        self._links = home.with_name("links")
        self._stop, self._warned = threading.Event(), False

    @contextmanager
    def running(self) -> Iterator[None]:
        beside = threading.Thread(target=self._watch, daemon=True)
        beside.start()
        try:
            yield
        finally:
            self._stop.set()
            beside.join()
            self._put_at_last()

    def _put_at_last(self) -> None:
        """What took hours is not lost to a storage that is away for some seconds."""
        for seconds in (*LAST_TRIES, None):
            try:
                self.put()
                return
            except TakenOver:
                raise
            except InputError as error:
                if seconds is None:
                    left = _leave(self._storage.url, self._before[0], self._home)
                    more = f" What it lacks lies in {left}, where the same command finds it." if left else ""
                    raise InputError(f"{error}{more}") from error
                self._warn(error)
                time.sleep(seconds)

    def _watch(self) -> None:
        while not self._stop.wait(MIRROR_SECONDS):
            try:
                self.put()
                self._warned = False
            except InputError as error:
                # The last one, on leaving, must work; until then the storage may come back.
                self._warn(error)

    def _warn(self, error: InputError) -> None:
        """Once, for as long as the storage is away."""
        if not self._warned:
            LOG.warning("%s The work goes on, and is put there when that is possible.", error)
        self._warned = True

    def put(self) -> None:
        """Bring the storage to the folder's state; nothing is sent when nothing changed."""
        seen = self._snapshot()
        if seen == self._seen:
            return
        old = self._before[1]
        files: Files = {}
        changed: dict[str, Path] = {}
        for name in seen:
            link = self._links / name
            facts = facts_of(link) if link.exists() else old[name]
            files[name] = facts
            if old.get(name) != facts:
                changed[name] = link
        if files != old:
            self._before = self._storage.commit(files, changed, self._before)
        self._seen = seen

    def _snapshot(self) -> dict[str, tuple[int, ...]]:
        """The files as they are at one moment, those that changed linked to."""
        while True:
            shutil.rmtree(self._links, ignore_errors=True)
            seen = self._files()
            try:
                for name, stamp in seen.items():
                    if self._seen.get(name) != stamp:
                        link = self._links / name
                        link.parent.mkdir(parents=True, exist_ok=True)
                        os.link(self._home / name, link)
            except FileNotFoundError:
                continue
            if seen == self._files():
                return seen

    def _files(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for path in sorted(self._home.rglob("*")):
            name = path.relative_to(self._home)
            if name.name in _NOT_KEPT or name.name.startswith(".") or any(map(name.is_relative_to, self._without)):
                continue
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                found[name.as_posix()] = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        return found


def put_folder(storage: Storage, folder: Path, *, without: str | None = None) -> None:
    """What a folder holds to a storage, once."""
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        copy = Path(scratch) / "home"
        left_out = shutil.ignore_patterns(*_NOT_KEPT, ".*", *([without] if without else []))
        shutil.copytree(folder, copy, ignore=left_out)
        _Mirror(storage, copy).put()
