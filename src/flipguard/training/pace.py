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
        self._free = float("-inf")

    def allows(self, last: float) -> bool:
        """Whether a run that saved at `last` may now: for each save of d seconds nobody makes another for 9 d."""
        now = self.clock()
        return now - last > SECONDS and now >= self._free

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save, which is timed."""
        began = self.clock()
        yield
        ended = self.clock()
        self._free = max(self._free, ended) + (ended - began) * (1 - SHARE) / SHARE


OF_THIS_PROCESS = Pace()
