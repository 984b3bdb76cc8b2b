"""`method: recommended`: a method by what a version follows, written out, and told."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipguard.releases import Listener, TrainSpec, train, train_on
from flipguard.releases.job import Job, Run
from flipguard.releases.plan import TrainPlan, VersionPlan
from flipguard.releases.recommended import AFTER_ANY, FIRST, HEIR, HEIR_OF_IMAGES, WAYS
from flipguard.releases.resolved import resolve
from flipguard.releases.run import check, runs_of
from flipguard.reports.progress import PlainProgress
from flipguard.spec.training import changed, parse_training_spec
from flipguard.training.pool import Here
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
THREE = {"name": "recommended", "ensemble": {"members": 3}}
TEXTS = {"name": "ag-news", "encode": {"words": 100, "length": 7}}


NOWHERE = Path("no such folder")
CHAIN = [{"name": name, "model": {"name": "mlp", "hidden": [n]}} for name, n in (("old", 5), ("new", 7), ("third", 11))]


def run_of(spec: TrainSpec, folder: Path = NOWHERE) -> Run:
    return runs_of(spec, folder)[0]


def made(spec: TrainSpec, folder: Path = NOWHERE) -> list[VersionPlan]:
    return list(run_of(spec, folder).spec.versions or [])


def names(spec: TrainSpec, folder: Path = NOWHERE) -> list[str | None]:
    return [None if version.method is None else version.method.name for version in made(spec, folder)]


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
        run_of(small(old={"run": str(tmp_path / "nowhere")}, method="recommended"))


def test_members_of_others_do_not_stand_for_ones_own(small: Make, tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    two = {"name": "recommended", "ensemble": {"members": 2}}
    for seed in (3, 4):
        train(small(method=two, seed=seed, members=shared, old=None), tmp_path / str(seed))
        homes = set(Path(shared).iterdir())
        if seed == 3:
            first = homes
    later = small(old={"run": str(tmp_path / "3")}, method="recommended")
    assert names(later) == [None, "scion"]
    for home in first:
        shutil.rmtree(home)
    assert len(list(Path(shared).iterdir())) == 2
    assert names(later) == [None, "graft"]


@pytest.mark.parametrize("spec", ["", "foo: 1", "versions: [3]", "versions: [{name: old, model: {name: mlp}}]"])
def test_a_version_of_which_nothing_is_told_was_never_treated(
    small: Make, finished: Path, tmp_path: Path, spec: str
) -> None:
    """A release's folder that was copied out of its run, and one whose run cannot be read or is another."""
    home = tmp_path / "copied/versions/new"
    shutil.copytree(finished / "versions/new", home)
    if spec:
        (tmp_path / "copied/spec.yaml").write_text(spec)
    method = made(small(old={"run": str(home)}, method="recommended"))[1].method
    assert method is not None
    assert (method.name, method.options["strength"]) == ("graft", 0.05)
    if spec.startswith(("foo", "versions: [3]")):
        with pytest.raises(InputError, match=r"spec\.yaml is not what a run was begun with"):
            run_of(small(old={"run": str(tmp_path / "copied")}, method="recommended"))


def test_what_it_inherits_through_another_run_is_found(small: Make, finished: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(finished, first)
    spec = small(old={"run": str(first)}, method="recommended")
    train(spec, tmp_path / "second")
    assert not (tmp_path / "second/members").exists()
    third = small(old={"run": str(tmp_path / "second")}, method="recommended")
    assert names(third) == [None, "scion"]
    train(third, tmp_path / "third")
    assert (tmp_path / "third/versions/new/model.json").exists()
    # Its own spec does not name the first run: that this is gone is no error of it.
    shutil.rmtree(first)
    method = made(third)[1].method
    assert method is not None
    assert (method.name, method.options["strength"]) == ("graft", 0.1)


def test_what_a_run_began_with_is_what_it_goes_on_with(small: Make, finished: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(finished, first)
    spec = small("new.train.epochs=2", old={"run": str(first)}, method="recommended")
    train(spec, second)
    begun = (second / "spec.yaml").read_bytes()
    shutil.rmtree(first / "members")
    assert train(spec, second).found
    shutil.rmtree(first)
    assert train(spec, second).found
    assert (second / "spec.yaml").read_bytes() == begun
    # What the user has changed is another run all the same.
    with pytest.raises(InputError, match=r"was begun with versions\.new\.train\.epochs 2, and this spec has 4"):
        train(small("new.train.epochs=4", old={"run": str(first)}, method="recommended"), second)
    # One that was killed in its last version needs its members, and says so.
    shutil.copytree(finished, first)
    shutil.rmtree(second / "versions/new")
    shutil.rmtree(first / "members")
    with pytest.raises(InputError, match=r"the members of 'old' are not in .*first/members any more"):
        train(spec, second)


def test_a_version_that_names_no_method_needs_its_source_no_more(small: Make, finished: Path, tmp_path: Path) -> None:
    """The hint of what could be taken looks at a source that the run itself does not need any more."""
    first = tmp_path / "first"
    shutil.copytree(finished, first)
    spec = small(old={"run": str(first)}, method=None)
    assert "takes scion" in "".join(run_of(spec).notes)
    train(spec, tmp_path / "second")
    # Whoever has begun has decided.
    assert run_of(spec, tmp_path / "second").notes == ()
    shutil.rmtree(first)
    assert train(spec, tmp_path / "second").found
    # One that cannot be looked at is no reason to say anything but what is wrong with it.
    assert run_of(spec).notes == ()


def test_members_of_this_run_that_are_gone_are_not_trained_again(small: Make, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    spec = small(old=None, new=None, versions=CHAIN, method=THREE)
    assert names(spec, run) == ["elodi", "scion", "scion"]
    shutil.rmtree(run / "members")
    assert names(spec, run) == ["elodi", "scion", "graft"]
    assert "as its members cannot be had" in run_of(spec, run).notes[0]
    train(spec, run)
    assert not (run / "members").exists()


def test_it_trains_to_its_end_and_is_found_again(small: Make, finished: Path) -> None:
    assert train(small(method=THREE), finished).found
    assert not (finished / "versions/new/state.safetensors").exists()


def test_resolving_twice_changes_nothing(small: Make, finished: Path) -> None:
    for spec in (small(method=THREE), small(old={"run": str(finished)}, method="recommended")):
        once = run_of(spec).spec
        assert resolve(once) == once
        assert run_of(once) == Run(once, run_of(once).folder)


SETTLED = {"floor": 0.1, "tail": 0.25}
ROUGH = {"floor": 0.0, "tail": 0.0, "average": 0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["train.epochs=32", "new.train.epochs=9"], {"epochs": 9, "average": 2, **SETTLED}),
        (["train.epochs=32", "new.train.dealt=false"], {"epochs": 44, "dealt": False, "views": 0}),
        (["train.epochs=32", "new.train.views=4"], {"epochs": 44, "dealt": False, "views": 4}),
        (["train.epochs=32", "train.views=4"], {"epochs": 44, "dealt": False, "views": 4}),
        (["train.epochs=32", "train.schedule=step"], {"epochs": 44, **ROUGH}),
        (["train.epochs=32", "train.choose_epoch=validation"], {"epochs": 44, **ROUGH}),
        (["train.epochs=32", "train.sharded=true"], {"epochs": 44, **ROUGH}),
        (["train.epochs=32", "train.warmup=0.8"], {"epochs": 44, **ROUGH}),
        (["train.epochs=32", "new.train.floor=0.0"], {"epochs": 44, **ROUGH}),
        (["train.epochs=32", "train.average=3"], {"epochs": 44, **ROUGH, "average": 3}),
        (["train.epochs=32", "train.cycles=8"], {"epochs": 48, "cycles": 8, **SETTLED, "average": 1}),
        (["train.epochs=1"], {"epochs": 1, "average": 0}),
    ],
)
def test_its_training_follows_the_plain_one_and_what_is_said_stays_said(
    small: Make, changes: list[str], expected: dict[str, Any]
) -> None:
    train = trained(made(small(*changes, method="recommended"))[1])
    assert {name: getattr(train, name) for name in expected} == expected


def test_what_is_wrong_is_said_of_what_the_user_wrote(small: Make) -> None:
    with pytest.raises(InputError, match=r"^method: recommended .* cannot be given alpha: name the method"):
        run_of(small(method={"name": "recommended", "alpha": 0.5}))
    with pytest.raises(InputError, match=r"^new\.method: recommended .* cannot be given k:"):
        run_of(small(new={"model": {"name": "mlp"}, "method": {"name": "recommended", "k": 3}}))
    with pytest.raises(InputError, match=r"^new\.method\.ensemble has no meaning: graft is not held to one"):
        run_of(small(new={"model": {"name": "mlp"}, "method": THREE}))
    with pytest.raises(InputError, match=r"^method\.ensemble is for a first version .* and 'old' is not made by it"):
        run_of(small(old={"checkpoint": "a.safetensors", "model": "mlp"}, method=THREE))
    with pytest.raises(InputError, match=r"^method\.ensemble .* and 'old' is not made by it"):
        run_of(small("old.method=none", method=THREE))
    with pytest.raises(InputError, match=r"^new\.references is radial, and recommended chooses"):
        run_of(small("new.references=radial", method="recommended"))
    with pytest.raises(InputError, match=r"^train\.learning_rate"):
        run_of(small("train.learning_rate=-1.0", method="recommended"))
    with pytest.raises(InputError, match=r"did you mean 'recommended'\?"):
        run_of(small(method="Recomended"))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"name": "npz", "file": "a.npz"}, "heir"),
        ({"name": "npz", "file": "a.npz", "augment": {"flip": True}}, "scion"),
        ({"name": "mosaic", "set": "cifar100"}, "scion"),
        ({"name": "mosaic", "set": "clinc150", "encode": {"words": 100, "length": 7}}, "heir"),
        ({"name": "table", "folder": "rows.csv"}, "heir"),
    ],
)
def test_images_are_told_from_texts_and_tables(small: Make, data: dict[str, Any], name: str) -> None:
    run = run_of(small(data=data, method="recommended"))
    assert [version.method.name for version in run.spec.versions or [] if version.method] == ["elodi", name]
    assert run.notes[1].endswith(" Tables are not measured.") == (name == "heir" and "encode" not in data)


def test_long_focal_distillation_asks_once(small: Make) -> None:
    new = trained(made(small("new.method=recommended", data=TEXTS))[1])
    assert (new.epochs, new.views, new.dealt) == (6, 1, False)


class Notes(Listener):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def test_the_way_is_told_with_its_reason_once(small: Make, tmp_path: Path) -> None:
    first, second = run_of(small(method="recommended")).notes
    assert first == f"'old' is made by elodi, 3 epochs: {FIRST.why} (docs/methods/elodi.md)."
    assert second == f"'new' is made by scion, 4 epochs: {HEIR_OF_IMAGES.why} (docs/methods/scion.md)."
    texts = small("new.method=recommended", data=TEXTS, method={"name": "elodi"})
    assert run_of(texts).notes == (f"'new' is made by heir, 8 epochs: {HEIR.why} (docs/methods/heir.md).",)

    spec, heard = small("seed=[0,1]", method=THREE), Notes()
    assert check(spec, tmp_path / "run").notes == (first, second)
    train(spec, tmp_path / "run", listener=heard)
    assert heard.told == [first, second]
    again = Notes()
    assert train(spec, tmp_path / "run", listener=again).found
    assert again.told == []


def test_a_pool_does_what_was_chosen_and_tells_it(small: Make, tmp_path: Path) -> None:
    spec, heard = small("seed=[0,1]", method=THREE), Notes()
    train_on(Here, spec, tmp_path / "run", listener=heard)
    assert heard.told == list(run_of(spec).notes)
    for seed in (0, 1):
        one = spec.model_copy(update={"seed": seed})
        assert names(one, tmp_path / f"run/seed_{seed}") == ["elodi", "scion"]
        assert len(list((tmp_path / f"run/seed_{seed}/members").iterdir())) == 6 // 2
    assert train(spec, tmp_path / "run").found


def test_a_source_whose_version_has_another_name(small: Make, finished: Path, tmp_path: Path) -> None:
    """What another run's members are counted for is a version of that run."""
    versions = [
        {"name": "january", "run": str(finished)},
        {"name": "february", "model": {"name": "mlp", "hidden": [7]}},
    ]
    said: list[str] = []
    spec = small(old=None, new=None, versions=versions, method="recommended")
    train(spec, tmp_path / "run", listener=PlainProgress(said.append))
    assert any("february: scion" in line for line in said)
    assert not any("members" in line and "note" not in line for line in said)


def test_another_run_at_the_same_place_is_noticed(small: Make, finished: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    shutil.copytree(finished, first)
    spec = small(old={"run": str(first)}, method="recommended")
    train(spec, tmp_path / "second")
    shutil.rmtree(tmp_path / "second/versions/new")
    shutil.rmtree(first)
    train(small(method=THREE, seed=7), first)
    with pytest.raises(InputError, match=r"came from .*first, and that holds other weights"):
        train(spec, tmp_path / "second")
    # Whoever follows what is kept here of the first one cannot have its members.
    third = small(
        old=None,
        new=None,
        versions=[{"name": "old", "run": str(first)}, {"name": "third", "model": {"name": "mlp", "hidden": [11]}}],
        method="recommended",
    )
    shutil.copytree(tmp_path / "second", tmp_path / "other")
    (tmp_path / "other/spec.yaml").unlink()
    assert names(third, tmp_path / "other") == [None, "graft"]


def test_members_that_are_trained_again_are_told_of(small: Make, finished: Path, tmp_path: Path) -> None:
    run, heard = tmp_path / "run", Notes()
    shutil.copytree(finished, run)
    shutil.rmtree(run / "versions/new")
    shutil.rmtree(run / "members")
    train(small(method=THREE), run, listener=heard)
    assert heard.told == ["members that 'old' learned from are gone: they are trained again."]


def test_what_is_repaired_counts_as_there(small: Make, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(next((run / "members").iterdir()))
    spec = small(old=None, new=None, versions=CHAIN, method=THREE)
    assert names(spec, run) == ["elodi", "scion", "graft"]
    train(spec, run, repair=True)
    assert names(spec, run) == ["elodi", "scion", "scion"]
    assert len(list((run / "members").iterdir())) == 3


def test_each_seed_tells_of_what_is_taken_for_it(small: Make, tmp_path: Path) -> None:
    train(small("seed=[0,1]", method=THREE), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/seed_1/members")
    spec, heard = small("seed=[0,1]", old=None, new=None, versions=CHAIN, method=THREE), Notes()
    told = check(spec, tmp_path / "run").notes
    assert ["scion" in text for text in told] == [True, False]
    train(spec, tmp_path / "run", listener=heard)
    assert heard.told == list(told)


def test_a_version_s_own_data_decide(small: Make) -> None:
    words = {"name": "ag-news", "encode": {"words": 100, "length": 7}}
    new = {"model": {"name": "mlp"}, "data": words}
    assert names(small(new=new, method="recommended")) == ["elodi", "heir"]


def test_code_of_a_source_is_looked_at_only_where_it_is_trusted(small: Make, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    spec = (run / "spec.yaml").read_text()
    (run / "spec.yaml").write_text(spec.replace("name: mlp", "name: somewhere.of:theirs", 1))
    assert "somewhere" in (run / "spec.yaml").read_text()
    with pytest.raises(InputError, match=r"--trust"):
        run_of(small(old={"run": str(run)}, method="recommended"))


def test_data_are_loaded_once(small: Make, finished: Path) -> None:
    runs = runs_of(small("seed=[0,1]", old={"run": str(finished)}, method="recommended"), NOWHERE)
    assert len(runs[0].loaded) == 1
    assert Job.of(runs[1], Listener()).loaded is runs[0].loaded
    # For a hint nothing is.
    hinted = run_of(small(old={"run": str(finished)}, method=None))
    assert "takes scion" in hinted.notes[0]
    assert hinted.loaded == {}


def test_nothing_is_told_of_a_run_that_is_refused(small: Make, tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    heard = Notes()
    with pytest.raises(InputError, match=r"was begun with"):
        train(small(method=THREE), tmp_path / "run", listener=heard)
    assert heard.told == []


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.name} {way.options}")
def test_what_is_told_is_not_cut_short(way: Any) -> None:
    said: list[str] = []
    text = (
        "'january-2027' is trained without regard to 'december-2026'. versions.january-2027.method=recommended takes "
    )
    text += f"{way.name}: {way.why} (docs/methods/{way.name}.md). Tables are not measured."
    PlainProgress(said.append).note(text)
    assert said == [f"note: {text}\n"]


def test_who_names_no_method_is_told_what_there_is(small: Make) -> None:
    (text,) = run_of(small(method=None)).notes
    assert text.startswith("'new' is trained without regard to 'old'. new.method=recommended takes graft: held")
    for silent in (small(), small("new.method=kd", method=None), small(old=None, method=None)):
        assert run_of(silent).notes == ()
    # What is there already is not trained; of a file of predictions nobody knows whether it has the training samples.
    for given in ({"new": {"predictions": "new.parquet"}}, {"old": {"predictions": "old.parquet"}}):
        assert run_of(small(method=None, **given)).notes == ()


@pytest.mark.parametrize("last", [{"model": "mlp"}, {"name": "b", "model": "mlp"}, {"name": "v1.1", "model": "mlp"}])
def test_what_one_is_told_to_write_can_be_written(small: Make, last: dict[str, str]) -> None:
    chain = {"data": TEXTS, "versions": [{"model": "mlp"}, last]}
    (text,) = run_of(parse_training_spec(chain)).notes
    (key,) = re.findall(r"versions\.\S+=recommended", text)
    assert text.endswith(f"{key} takes fd_kl: {AFTER_ANY.why} (docs/methods/fd_kl.md).")
    assert names(parse_training_spec(changed(chain, [key]))) == ["none", "fd_kl"]
