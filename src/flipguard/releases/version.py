"""One version of a chain: from its task to what lies in its folder, by the kind of its method."""

from collections.abc import Callable

from flipguard.releases import material
from flipguard.releases.averaged import averaged
from flipguard.releases.folder import EARLIER, PREDICTIONS, STATE, made
from flipguard.releases.objective import objective
from flipguard.releases.provenance import facts_of
from flipguard.releases.references import Task, members
from flipguard.releases.release import Release
from flipguard.releases.settled import build, card_of


def make_version(task: Task) -> Release:
    """Train a version to its release: weights and predictions in its folder, model.json last."""
    made(task.home)
    release = KINDS[card_of(task.method).kind](task)
    release.save(task.home)
    keep_predictions(release, task)
    keep_earlier(task)
    release.finish(task.home)
    (task.home / STATE).unlink(missing_ok=True)
    return release


def help_make(task: Task) -> None:
    """Take part in a version's training; the first process of the team makes the release."""
    made(task.home)
    KINDS[card_of(task.method).kind](task)


def keep_predictions(release: Release, task: Task, *, missing: bool = False) -> None:
    """What a release says of the held-out parts; with `missing` only those of which there is no file."""
    folder = made(task.home / PREDICTIONS)
    for part in material.held_out(task.data):
        if missing and (folder / f"{part}.parquet").exists():
            continue
        release.predictions(task.data, part, device=task.device).write(folder / f"{part}.parquet")


def keep_earlier(task: Task) -> None:
    """What earlier versions say of this one's test part, where it is another than theirs: the data grew."""
    for one in task.earlier:
        if isinstance(one, Release) and one.facts.get("test") != task.data.fingerprint("test"):
            said = one.predictions(task.data, "test", device=task.device)
            said.write(made(task.home / EARLIER) / f"{one.name}.parquet")


def _paragon(task: Task) -> Release:
    """The ensemble itself, with its members' weights side by side in one file."""
    plan = task.ensemble
    assert plan.model is not None
    method = build(task.method)
    ensemble = method(members(task)).to(task.device)
    return Release(
        task.name,
        ensemble,
        material.model_spec(plan.model[0]),
        task.data.classes,
        task.data.normalisation,
        members=plan.members,
        combination=ensemble.combination,
        facts=facts_of(task),
        encoder=task.data.encoder,
    )


KINDS: dict[str, Callable[[Task], Release]] = {"objective": objective, "post-hoc": averaged, "paragon": _paragon}
"""How a version is made, by the kind on its method's card."""
