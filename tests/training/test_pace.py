"""How often runs that take turns save: each seldom, and all of them a tenth of the time."""

from dataclasses import dataclass

from flipguard.training.pace import SECONDS, SHARE, Pace


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def save(pace: Pace, clock: Clock, seconds: float) -> float:
    with pace.saving():
        clock.now += seconds
    return clock.now


def test_a_run_alone_saves_every_so_many_seconds() -> None:
    clock = Clock()
    pace = Pace(clock)
    last = clock.now
    assert not pace.allows(last)
    clock.now += SECONDS + 0.1
    assert pace.allows(last)
    last = save(pace, clock, 0.2)
    clock.now += SECONDS - 0.1
    assert not pace.allows(last)
    clock.now += 0.2
    assert pace.allows(last)


def test_states_that_are_saved_together_are_paid_for_together() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(4):
        last = save(pace, clock, 2.0)
    # The first was paid for while the others were saved, by six seconds of its eighteen.
    clock.now += 4 * 18.0 - 6.1
    assert not pace.allows(last - SECONDS)
    clock.now += 0.2
    assert pace.allows(last - SECONDS)


def test_many_runs_train_nine_tenths_of_the_time_and_each_is_saved() -> None:
    """Fifty in turn, each turn of a second, each state a second: by their own clocks they would save and do no more."""
    clock = Clock()
    pace = Pace(clock)
    runs, spent = [clock.now] * 50, 0.0
    saves = [0] * 50
    began = clock.now
    while clock.now - began < 5000:
        for run, last in enumerate(runs):
            clock.now += 0.02
            if pace.allows(last):
                runs[run] = save(pace, clock, 1.0)
                saves[run] += 1
                spent += 1.0
    assert 0.9 * SHARE < spent / (clock.now - began) <= SHARE + 0.001
    assert min(saves) >= 5
