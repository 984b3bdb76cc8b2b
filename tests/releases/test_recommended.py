"""`method: recommended`: a method by what a version follows, written out, and told."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipguard.releases import Listener, TrainSpec, train
from flipguard.releases.advice import advice
from flipguard.releases.plan import TrainPlan, VersionPlan
from flipguard.releases.recommended import AFTER_ANY, FIRST, HEIR, HEIR_OF_IMAGES
from flipguard.releases.resolved import resolve
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
THREE = {"name": "recommended", "ensemble": {"members": 3}}
TEXTS = {"name": "ag-news", "encode": {"words": 100, "length": 7}}


def made(spec: TrainSpec) -> list[VersionPlan]:
    return list(resolve(spec).versions or [])


def names(spec: TrainSpec) -> list[str | None]:
    return [None if version.method is None else version.method.name for version in made(spec)]


def trained(version: VersionPlan) -> TrainPlan:
    assert version.train is not None
    return version.train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    """Both ways at once: a first release with its members, and an update by what is recommended after it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small(method=THREE), folder)
    return folder


def test_images_begin_with_an_ensemble_and_inherit_it(small: Make) -> None:
    old, new = made(small("train.epochs=32", method=THREE))
    assert old.method is not None
    assert new.method is not None
    assert (old.method.name, old.method.options["alpha"], old.references) == ("elodi", 0.9, "chain")
    assert old.method.ensemble is not None
    assert old.method.ensemble.members == 3
    assert (new.method.name, new.method.ensemble, new.references) == ("scion", None, "ensemble")
    assert (trained(old).epochs, trained(old).average, trained(old).dealt) == (32, 0, False)
    ours = trained(new)
    # As `dealt_branch` of results/README.md, with 11 of its 44 epochs averaged in place of 10.
    assert (ours.epochs, ours.dealt, ours.views, ours.floor, ours.tail, ours.average) == (44, True, 0, 0.1, 0.25, 11)


def test_texts_inherit_by_one_network_for_longer(small: Make) -> None:
    old, new = made(small(data=TEXTS, method="recommended"))
    assert [version.method.name for version in (old, new) if version.method] == ["elodi", "heir"]
    assert (trained(new).epochs, trained(new).views, trained(new).dealt) == (8, 1, False)
    assert (trained(new).floor, trained(new).average) == (0.0, 0)


def test_an_heir_is_followed_by_an_heir(small: Make) -> None:
    versions = [{"model": {"name": "mlp", "hidden": [width]}} for width in (5, 7, 11)]
    spec = small(old=None, new=None, versions=versions, method="recommended")
    assert names(spec) == ["elodi", "scion", "scion"]
    versions[1]["method"] = {"name": "kd"}
    assert names(small(old=None, new=None, versions=versions, method="recommended")) == ["elodi", "kd", "graft"]


@pytest.mark.parametrize(("data", "name", "strength"), [(None, "graft", 0.05), (TEXTS, "fd_kl", 0.3)])
def test_after_a_version_that_was_never_treated(small: Make, data: Any, name: str, strength: float) -> None:
    given = {} if data is None else {"data": data}
    old, new = made(small("new.method=recommended", **given))
    assert old.method is not None
    assert new.method is not None
    assert (old.method.name, new.method.name, new.references) == ("none", name, "chain")
    assert new.method.options["strength"] == strength


def test_a_run_is_looked_at(small: Make, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "source"
    shutil.copytree(finished, run)
    old, new = str(run / "versions/old"), str(run)
    for source in (old, new):
        # The scion learned from what it inherited, and leaves that behind.
        assert names(small(old={"run": source}, method="recommended")) == [None, "scion"]
    shutil.rmtree(next((run / "members").iterdir()))
    later = made(small(old={"run": old}, method="recommended"))[1]
    assert later.method is not None
    assert (later.method.name, later.method.options["strength"]) == ("graft", 0.1)
    train(small("new.method=kd"), tmp_path / "plain")
    for version in ("old", "new"):
        source = str(tmp_path / "plain/versions" / version)
        found = made(small(old={"run": source}, method="recommended"))[1].method
        assert found is not None
        assert (found.name, found.options["strength"]) == ("graft", 0.05)
    with pytest.raises(InputError, match=r"the run folder .*nowhere does not exist"):
        resolve(small(old={"run": str(tmp_path / "nowhere")}, method="recommended"))


def test_what_it_inherits_through_another_run_is_found(small: Make, finished: Path, tmp_path: Path) -> None:
    spec = small(old={"run": str(finished)}, method="recommended")
    train(spec, tmp_path / "second")
    assert not (tmp_path / "second/members").exists()
    third = small(old={"run": str(tmp_path / "second")}, method="recommended")
    assert names(third) == [None, "scion"]
    train(third, tmp_path / "third")
    assert (tmp_path / "third/versions/new/model.json").exists()


def test_it_trains_to_its_end_and_is_found_again(small: Make, finished: Path) -> None:
    assert train(small(method=THREE), finished).found
    assert not (finished / "versions/new/state.safetensors").exists()


def test_resolving_twice_changes_nothing(small: Make, finished: Path) -> None:
    for spec in (small(method=THREE), small(old={"run": str(finished)}, method="recommended")):
        once = resolve(spec)
        assert resolve(once) == once


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["train.epochs=32", "new.train.epochs=9"], {"epochs": 9, "average": 2}),
        (["train.epochs=32", "new.train.dealt=false"], {"epochs": 44, "dealt": False, "views": 0}),
        (["train.epochs=32", "new.train.views=4"], {"epochs": 44, "dealt": False, "views": 4}),
        (["train.epochs=32", "train.schedule=step"], {"epochs": 44, "floor": 0.0, "tail": 0.0, "average": 0}),
        (["train.epochs=32", "train.choose_epoch=validation"], {"epochs": 44, "floor": 0.0, "average": 0}),
        (["train.epochs=32", "train.cycles=8"], {"epochs": 48, "cycles": 8}),
        (["train.epochs=1"], {"epochs": 1, "average": 0}),
    ],
)
def test_its_training_follows_the_plain_one_and_a_versions_own_has_the_last_word(
    small: Make, changes: list[str], expected: dict[str, Any]
) -> None:
    train = trained(made(small(*changes, method="recommended"))[1])
    assert {name: getattr(train, name) for name in expected} == expected


def test_options_belong_to_a_method_that_is_named(small: Make) -> None:
    with pytest.raises(InputError, match=r"^method: recommended .* cannot be given alpha: name the method"):
        resolve(small(method={"name": "recommended", "alpha": 0.5}))
    with pytest.raises(InputError, match=r"^new\.method: recommended .* cannot be given k:"):
        resolve(small(new={"model": {"name": "mlp"}, "method": {"name": "recommended", "k": 3}}))


def test_the_way_is_told_with_its_reason(small: Make, tmp_path: Path) -> None:
    spec = small(method="recommended")
    first, second = advice(spec, resolve(spec))
    assert first == f"'old' is made by elodi, 3 epochs: {FIRST.why} (docs/methods/elodi.md)."
    assert second == f"'new' is made by scion, 4 epochs: {HEIR_OF_IMAGES.why} (docs/methods/scion.md)."
    texts = small("new.method=recommended", data=TEXTS, method={"name": "elodi"})
    assert advice(texts, resolve(texts)) == [f"'new' is made by heir, 8 epochs: {HEIR.why} (docs/methods/heir.md)."]

    class Notes(Listener):
        def __init__(self) -> None:
            self.told: list[str] = []

        def note(self, text: str) -> None:
            self.told.append(text)

    heard = Notes()
    train(small("seed=[0,1]", method=THREE), tmp_path / "run", listener=heard)
    assert heard.told == [first, second]


def test_who_names_no_method_is_told_what_there_is(small: Make) -> None:
    spec = small(method=None)
    (text,) = advice(spec, resolve(spec))
    assert text.startswith(
        "no method is named, so 'new' is trained without regard to 'old'. new.method=recommended takes graft: branches"
    )
    chain = small(
        old=None, new=None, method=None, data=TEXTS, versions=[{"model": "mlp"}, {"name": "b", "model": "mlp"}]
    )
    (text,) = advice(chain, resolve(chain))
    assert f"versions.b.method=recommended takes fd_kl: {AFTER_ANY.why}" in text
    for silent in (small(), small("new.method=kd", method=None), small(old=None, method=None)):
        assert advice(silent, resolve(silent)) == []
    alone = small(old={"model": "mlp"}, new={"predictions": "new.parquet"}, method=None)
    assert advice(alone, resolve(alone)) == []
