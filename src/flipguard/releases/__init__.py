"""Run folders and chains of versions: from a spec to networks that can be released, and back from a folder."""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily

if TYPE_CHECKING:
    from flipguard.releases.listener import Listener, Listeners
    from flipguard.releases.outcome import Outcome
    from flipguard.releases.plan import TrainSpec
    from flipguard.releases.release import Release, load_release
    from flipguard.releases.resolved import resolve
    from flipguard.releases.run import train
    from flipguard.releases.spread import train_on

_HOME = {
    **dict.fromkeys(("Listener", "Listeners"), "flipguard.releases.listener"),
    **dict.fromkeys(("Release", "load_release"), "flipguard.releases.release"),
    "Outcome": "flipguard.releases.outcome",
    "TrainSpec": "flipguard.releases.plan",
    "resolve": "flipguard.releases.resolved",
    "train": "flipguard.releases.run",
    "train_on": "flipguard.releases.spread",
}

__all__ = ["Listener", "Listeners", "Outcome", "Release", "TrainSpec", "load_release", "resolve", "train", "train_on"]

__getattr__ = lazily(__name__, _HOME)
