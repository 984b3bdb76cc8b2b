"""How often states are saved by runs whose steps take milliseconds: each seldom, all of a process a tenth of its time.

Fifty networks that take turns on one GPU have fifty states. To save one takes a second where the weights are hundreds
of megabytes, so that each by its own clock would leave no time to train.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 30.0
"""A run saves no more often than this."""
SHARE = 0.1
"""At most so much of a process's time goes into saving."""


class Pace:
    """Says when the next state may be saved; runs that take turns in a process share one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._free = self._opened = float("-inf")

    def allows(self, last: float) -> bool:
        """Whether a run that saved at `last` may now. Each save of d seconds keeps the next round away by 10 d.

        Runs that take turns come here in the same order every time: who comes first opens a round, in which everybody
        may follow who has not saved since, so that the last of them is saved as often as the first.
        """
        now = self.clock()
        if now - last <= SECONDS:
            return False
        if now >= self._free:
            self._opened = now
            return True
        return last < self._opened

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save, which is timed."""
        began = self.clock()
        yield
        self._free = max(self._free, began) + (self.clock() - began) / SHARE


OF_THIS_PROCESS = Pace()
