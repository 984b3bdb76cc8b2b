"""`references: ensemble`: an update is held to what its predecessor was distilled from, in its run or another."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flipguard.checkpoints import load_checkpoint
from flipguard.releases import Listener, TrainSpec, train
from flipguard.releases.resolved import resolve
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
ELODI = {"name": "elodi", "ensemble": {"members": 3}}
LDI = {"name": "ldi", "alpha": 0.7, "difference": {"margin": 0.0}}


def old(**changes: Any) -> dict[str, Any]:
    return {"name": "old", "model": {"name": "mlp", "hidden": [5]}, "method": ELODI, "seed": 7, **changes}


def new(**changes: Any) -> dict[str, Any]:
    own = {"name": "new", "model": {"name": "mlp", "hidden": [9]}, "method": LDI, "seed": 8}
    return {**own, "references": "ensemble", **changes}


def chain(small: Make, *versions: dict[str, Any]) -> TrainSpec:
    return small(old=None, new=None, method=None, versions=list(versions))


def weights(folder: Path, version: str = "new") -> dict[str, Tensor]:
    return load_checkpoint(folder / "versions" / version / "model.safetensors")[0]


class Members(Listener):
    """Counts members that are trained."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def members(self, version: str, done: int, total: int) -> None:
        self.told.append((version, done, total))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(chain(small, old(), new()), folder)
    return folder


def test_it_is_the_ensemble_kept_as_a_version(small: Make, finished: Path, tmp_path: Path) -> None:
    """Which is how it had to be said before: one network that answers by its members' mean."""
    kept = old(name="kept", method={"name": "paragon", "ensemble": {"members": 3}})
    train(chain(small, kept, old(), new(references="radial")), tmp_path / "radial")
    train(chain(small, old(), new(references="chain")), tmp_path / "chain")
    ours, radial, chained = weights(finished), weights(tmp_path / "radial"), weights(tmp_path / "chain")
    for name, value in ours.items():
        torch.testing.assert_close(value, radial[name], rtol=1e-4, atol=1e-5)
    assert any((value - chained[name]).abs().max() > 1e-3 for name, value in ours.items())


def test_members_are_trained_once(small: Make, tmp_path: Path) -> None:
    heard = Members()
    train(chain(small, old(), new()), tmp_path / "run", listener=heard)
    assert [told for told in heard.told if told[1]] == [("old", n, 3) for n in (1, 2, 3)] + [("old", 3, 3)]
    assert len(list((tmp_path / "run/members").iterdir())) == 3


def test_a_version_of_another_run_brings_its_ensemble(small: Make, finished: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(finished, source)
    given = {"name": "old", "run": str(source / "versions/old")}
    train(chain(small, given, new()), tmp_path / "run")
    ours, theirs = weights(tmp_path / "run"), weights(finished)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert not (tmp_path / "run/members").exists()
    before = sorted(source.rglob("*"))
    shutil.rmtree(next((source / "members").iterdir()))
    with pytest.raises(InputError, match=r"the members of 'old' are not in .*source/members any more"):
        train(chain(small, given, new()), tmp_path / "late")
    assert not (tmp_path / "late").exists()
    assert len(sorted(source.rglob("*"))) == len(before) - 2
    train(chain(small, old(method="none")), tmp_path / "plain")
    with pytest.raises(InputError, match=r"'old' of .*plain did not learn from an ensemble"):
        train(chain(small, {"name": "old", "run": str(tmp_path / "plain")}, new()), tmp_path / "late")


def test_it_may_know_fewer_classes(small: Make, tmp_path: Path) -> None:
    train(chain(small, old(data={"classes": ["0", "1", "2", "3"]}), new()), tmp_path / "run")
    assert weights(tmp_path / "run", "old")["head.weight"].shape[0] == 4
    assert weights(tmp_path / "run")["head.weight"].shape[0] == 10


def test_month_by_month(small: Make, finished: Path, tmp_path: Path) -> None:
    """A run whose first version came from another run is the source of the next."""
    february = chain(small, {"name": "january", "run": str(finished / "versions/old")}, old(name="february", seed=9))
    train(february, tmp_path / "february")
    train(chain(small, {"name": "february", "run": str(tmp_path / "february")}, new()), tmp_path / "march")
    assert (tmp_path / "march/versions/new/model.json").exists()


def test_heir_is_that_by_itself(small: Make, finished: Path, tmp_path: Path) -> None:
    heir = new(method={"name": "heir", "alpha": 0.7})
    del heir["references"]
    train(chain(small, old(), heir), tmp_path / "run")
    ours, theirs = weights(tmp_path / "run"), weights(finished)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    again = train(chain(small, old(), new(method={"name": "heir", "alpha": 0.7})), tmp_path / "run")
    assert again.found


def test_a_scion_is_branches_that_inherit(small: Make, tmp_path: Path) -> None:
    """As `graft` with the same references and options; without a strength it is held to nobody."""
    model = {"name": "mlp", "hidden": [9, 9]}
    graft = {"name": "graft", "members": 3, "strength": 0.1}
    train(chain(small, old(), new(model=model, method=graft)), tmp_path / "graft")
    train(chain(small, old(), new(model=model, method={"name": "scion"}, references="chain")), tmp_path / "scion")
    ours, theirs = weights(tmp_path / "scion"), weights(tmp_path / "graft")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    free = new(model=model, method={"name": "scion", "strength": 0.0}, references="chain")
    train(chain(small, old(method={"name": "none"}), free), tmp_path / "free")


def test_twins_make_a_first_release_without_an_old_one(small: Make, tmp_path: Path) -> None:
    """As the method of a whole spec; each version is two networks' training, and the second is held to the first."""
    spec = small(method={"name": "twins", "unity": 3.0})
    train(spec, tmp_path / "run")
    first, second = (version.method for version in resolve(spec).versions or [])
    assert first is not None
    assert second is not None
    assert (first.options["strength"], second.options["strength"]) == (0.0, 0.3)
    assert first.options["unity"] == second.options["unity"] == 3.0
    alone = small(
        "new.method.name=twins",
        "new.method.strength=0.0",
        "new.method.unity=3.0",
        method={"name": "twins", "unity": 3.0},
    )
    train(alone, tmp_path / "alone")
    ours, theirs = (load_checkpoint(tmp_path / run / "versions/old/model.safetensors")[0] for run in ("run", "alone"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), "the first is the same"
    with pytest.raises(InputError, match=r"old is the first version, and twins needs an old one.* or strength: 0\.0"):
        resolve(small("old.method.name=twins"))
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "alone")
    assert any(not torch.equal(value, theirs[name]) for name, value in ours.items()), "the second is held to it"


def test_an_heir_s_heir_has_what_it_had(small: Make, tmp_path: Path) -> None:
    """In one run, in the next, and in the one after that, whose source came from elsewhere itself."""
    last = new(name="last", seed=9)
    train(chain(small, old(), new(), last), tmp_path / "whole")
    train(chain(small, old(), new()), tmp_path / "first")
    given = {"name": "new", "run": str(tmp_path / "first")}
    train(chain(small, given, last), tmp_path / "second")
    further = {"name": "old", "run": str(tmp_path / "first/versions/old")}
    train(chain(small, further, new()), tmp_path / "apart")
    train(chain(small, {"name": "new", "run": str(tmp_path / "apart")}, last), tmp_path / "third")
    expected = weights(tmp_path / "whole", "last")
    for folder in ("second", "third"):
        found = weights(tmp_path / folder, "last")
        assert all(torch.equal(value, expected[name]) for name, value in found.items()), folder
    assert sorted(path.name for path in tmp_path.glob("*/members")) == ["members"] * 2
    shutil.rmtree(tmp_path / "first/members")
    with pytest.raises(InputError, match=r"the members of 'old' are not in .*first/members any more"):
        train(chain(small, {"name": "new", "run": str(tmp_path / "apart")}, last), tmp_path / "late")


def test_an_ensemble_of_one_s_own_comes_first(small: Make, tmp_path: Path) -> None:
    """A version that learned from both leaves its own to the next."""
    both = old(name="both", seed=9, method={**ELODI, "mix": 0.5}, references="ensemble")
    train(chain(small, old(), both, new()), tmp_path / "whole")
    train(chain(small, {"name": "both", "run": str(tmp_path / "whole/versions/both")}, new()), tmp_path / "next")
    kept = old(name="kept", seed=9, method={"name": "paragon", "ensemble": {"members": 3}})
    train(chain(small, kept, new(references="chain")), tmp_path / "expected")
    expected = weights(tmp_path / "expected")
    for folder in ("whole", "next"):
        for name, value in weights(tmp_path / folder).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_source_that_is_another_run_from_here_is_noticed(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run: first` is a path from where the command was called."""
    for place, seed in (("here", 7), ("there", 17)):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        train(chain(small, old(seed=seed)), Path("first"))
    monkeypatch.chdir(tmp_path / "here")
    train(chain(small, {"name": "old", "run": "first"}, new()), Path("second"))
    third = chain(small, {"name": "new", "run": str(tmp_path / "here/second")}, new(name="last", seed=9))
    train(third, Path("third"))
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(InputError, match=r"came from first, and that holds other weights when read from here"):
        train(third, Path("third"))


def test_bad_input(small: Make, tmp_path: Path) -> None:
    soup = old(method={"name": "soup", "ensemble": {"members": 2}})
    for versions, message in (
        ((old(method={"name": "none"}), new()), "'old' did not learn from an ensemble here, as by elodi"),
        ((old(), new(method="heir", references="full")), "heir is held to the ensemble that the version before"),
        ((old(method="none"), new(method="heir")), "'old' did not learn from an ensemble here, as by elodi"),
        ((old(method="heir"), new()), "is the first version, and heir needs an old one"),
        ((old(), new(method=ELODI)), "has no meaning: elodi is not held to an old version"),
        ((old(references="ensemble"),), "has no meaning: elodi is not held to an old version"),
        ((old(), new(method={"name": "weight_interpolation"})), "mixes with one old network"),
        ((old(name="first", method={"name": "none"}), soup, new()), "'old' did not learn from an ensemble here"),
    ):
        with pytest.raises(InputError, match=message):
            train(chain(small, *versions), tmp_path / "run")
        assert not (tmp_path / "run").exists()
