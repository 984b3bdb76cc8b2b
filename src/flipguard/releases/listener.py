"""Who wants to hear how a run goes: a display, a tracker, a test."""

from collections.abc import Mapping, Sequence
from typing import Any


class Listener:
    """Hears of a run as it goes. Every method does nothing here: override what is of interest."""

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        """A run over one seed begins; `spec` is the resolved one."""

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        """A version is about to be trained, its members first."""

    def members(self, version: str, done: int, total: int) -> None:
        """So many of the ensemble's members are there."""

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        """An epoch ended; `figures` is its line of metrics.jsonl."""

    def version_ends(self, version: str, *, found: bool) -> None:
        """A version is there: trained now, or `found` in the folder."""

    def note(self, text: str) -> None:
        """Something that a reader should know."""

    def close(self) -> None:
        """The job is over, well or not."""


class Listeners(Listener):
    """Several that all hear everything, in order."""

    def __init__(self, several: Sequence[Listener]) -> None:
        self._all = tuple(several)

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        for one in self._all:
            one.run_begins(folder, spec)

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        for one in self._all:
            one.version_begins(version, method, epochs)

    def members(self, version: str, done: int, total: int) -> None:
        for one in self._all:
            one.members(version, done, total)

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        for one in self._all:
            one.epoch(version, figures)

    def version_ends(self, version: str, *, found: bool) -> None:
        for one in self._all:
            one.version_ends(version, found=found)

    def note(self, text: str) -> None:
        for one in self._all:
            one.note(text)

    def close(self) -> None:
        for one in self._all:
            one.close()
