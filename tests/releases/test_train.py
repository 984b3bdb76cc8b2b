"""From a spec to a run folder: what lies there, what is trained once only, and every form of an old version."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flipguard
from flipguard.checkpoints import load_checkpoint
from flipguard.data import load_data
from flipguard.methods import METHODS
from flipguard.predictions import Predictions
from flipguard.releases import Listener, Outcome, TrainSpec, load_release, train
from flipguard.releases.export import export_release
from flipguard.training import TrainingError
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
ELODI = ("method.name=elodi", "method.ensemble.members=3")


class Heard(Listener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.found: list[str] = []
        self.member_counts: list[tuple[str, int, int]] = []
        self.epochs: list[tuple[str, int]] = []

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        self.trained.append(version)

    def version_ends(self, version: str, *, found: bool) -> None:
        self.found += [version] if found else []

    def members(self, version: str, done: int, total: int) -> None:
        self.member_counts.append((version, done, total))

    def epoch(self, version: str, figures: Any) -> None:
        self.epochs.append((version, figures["epoch"]))


def weights(folder: Path, version: str = "new") -> dict[str, Tensor]:
    return load_checkpoint(folder / "versions" / version / "model.safetensors")[0]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    """An untreated update that others start from."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train(small(), folder)
    return folder


def test_dealt_is_for_the_student_alone(small: Make, tmp_path: Path) -> None:
    """Its members are those of a run without, and it is another student."""
    store = tmp_path / "store"
    for dealt in ("false", "true"):
        train(small(*ELODI, f"train.dealt={dealt}", f"members={store}"), tmp_path / dealt)
    assert len(list(store.iterdir())) == 6
    one, other = (weights(tmp_path / dealt) for dealt in ("false", "true"))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_views_without_augmentation_change_the_cost_alone(small: Make, tmp_path: Path) -> None:
    """The student is the same up to rounding, and both runs share their members."""
    store = tmp_path / "store"
    for views in (0, 3):
        train(small(*ELODI, f"train.views={views}", f"members={store}"), tmp_path / str(views))
    assert len(list(store.iterdir())) == 6
    plain, kept = (weights(tmp_path / str(views)) for views in (0, 3))
    for name, value in plain.items():
        torch.testing.assert_close(kept[name], value, rtol=1e-3, atol=1e-4)


def test_the_folder_holds_all_that_a_release_needs(finished: Path) -> None:
    for version in ("old", "new"):
        home = finished / "versions" / version
        names = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
        expected = {"metrics.jsonl", "model.json", "model.safetensors"}
        assert names == {*expected, "predictions/test.parquet", "predictions/validation.parquet"}
        lines = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [0, 1, 2]
        assert {line["part"] for line in lines} == {"validation"}
    facts = json.loads((finished / "run.json").read_text())
    assert facts["status"] == "finished"
    assert facts["versions"]["torch"] == str(torch.__version__)
    card = json.loads((finished / "versions/new/model.json").read_text())
    assert card["classes"] == [str(digit) for digit in range(10)]
    assert card["model"] == {"name": "mlp", "options": {"hidden": [7]}}
    assert card["seeds"] == {"initialisation": 1000, "order": 1000, "augment": 1000}


def test_the_last_epoch_s_figures_are_those_of_the_released_networks(finished: Path) -> None:
    """metrics.jsonl against a comparison of the validation predictions."""
    last = json.loads((finished / "versions/new/metrics.jsonl").read_text().splitlines()[-1])
    found = flipguard.compare(
        *(finished / f"versions/{name}/predictions/validation.parquet" for name in ("old", "new"))
    )
    for field in ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate"):
        assert last[field] == pytest.approx(float(getattr(found, field)), abs=1e-12)


def test_predictions_are_what_the_release_says(finished: Path) -> None:
    release = load_release(finished)
    data = load_data({"name": "digits", "test_size": 0.6})
    rows = flipguard.read_predictions(finished / "versions/new/predictions/test.parquet").table(["id", "logits"])
    assert rows["id"].to_pylist() == data.test.ids.tolist()
    np.testing.assert_array_equal(np.array(rows["logits"].to_pylist(), np.float32), release.logits(data, "test"))


def test_the_comparison_is_that_of_the_prediction_files(finished: Path) -> None:
    written = json.loads((finished / "comparison.json").read_text())
    files = [finished / f"versions/{name}/predictions/test.parquet" for name in ("old", "new")]
    assert [one["negative_flips"] for one in written] == [flipguard.compare(*files).negative_flips]


def test_the_same_call_again_trains_nothing_and_says_so(finished: Path, small: Make) -> None:
    heard, before = Heard(), weights(finished)
    outcome = train(small(), finished, listener=heard)
    assert outcome.found
    assert (heard.trained, heard.epochs) == ([], [])
    assert same(before, weights(finished))


def test_a_folder_from_before_a_setting_was_known_is_still_the_same_run(tmp_path: Path, small: Make) -> None:
    """Its spec lacks the key; the default is what the run was made with."""
    train(small(*ELODI, "train.epochs=1"), tmp_path / "a")
    path = tmp_path / "a/spec.yaml"
    lines = path.read_text().splitlines(keepends=True)
    older = [line for line in lines if "calibrated" not in line and "channels_last" not in line]
    assert len(older) < len(lines)
    path.write_text("".join(older))
    assert train(small(*ELODI, "train.epochs=1"), tmp_path / "a").found
    with pytest.raises(InputError, match=r"begun with versions\.old\.method\.ensemble\.calibrated false"):
        train(small(*ELODI, "train.epochs=1", "method.ensemble.calibrated=true"), tmp_path / "a")


@pytest.mark.parametrize("offline", [False, True])
def test_members_are_trained_once_and_shared(offline: bool, tmp_path: Path, small: Make) -> None:
    shared = f"members={tmp_path / 'members'}"
    first, second = Heard(), Heard()
    train(small(*ELODI, shared), tmp_path / "a", listener=first)
    train(
        small(*ELODI, shared, "method.alpha=0.5", f"method.ensemble.offline={offline}"), tmp_path / "b", listener=second
    )
    assert first.member_counts == [(v, n, 3) for v in ("old", "new") for n in range(4)]
    assert second.member_counts == [("old", 3, 3), ("new", 3, 3)]
    assert len(list((tmp_path / "members").iterdir())) == 6
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_offline_logits_are_online_ones_without_augmentation(tmp_path: Path, small: Make) -> None:
    for name, offline in (("on", False), ("off", True)):
        train(small(*ELODI, f"method.ensemble.offline={offline}"), tmp_path / name)
    online, offline_weights = weights(tmp_path / "on"), weights(tmp_path / "off")
    for name, value in online.items():
        torch.testing.assert_close(value, offline_weights[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_an_update(method: str, tmp_path: Path, small: Make) -> None:
    """Also those that nobody here has heard of: what a method needs is read off its card."""
    ensemble = ["method.ensemble.members=2"] if "ensemble" in METHODS[method].references else []
    alike = ["new.model.hidden=[5]"] if METHODS[method].kind == "post-hoc" else []
    spec = small(f"method.name={method}", *ensemble, *alike, "train.epochs=1", "train.clip_norm=1.0")
    outcome = train(spec, tmp_path / "a")
    assert outcome.comparisons[0].n == 1078
    rows = flipguard.read_predictions(tmp_path / "a/versions/new/predictions/test.parquet").table(["logits"])
    said = load_release(tmp_path / "a").logits(load_data({"name": "digits", "test_size": 0.6}))
    np.testing.assert_array_equal(np.array(rows["logits"].to_pylist(), np.float32), said)


def test_one_teacher_for_each_member(tmp_path: Path, small: Make) -> None:
    spec = small("method.name=latent_be", "method.members=3", "method.ensemble.members=2")
    with pytest.raises(InputError, match=r"method\.members is 3 and method\.ensemble\.members 2: each member learns"):
        train(spec, tmp_path / "a")


def test_what_looks_at_members_does_not_combine_them(tmp_path: Path, small: Make) -> None:
    for method in ("ae_kd", "proxy_end2", "latent_be"):
        spec = small(f"method.name={method}", "method.ensemble.combination=probabilities")
        with pytest.raises(InputError, match=f"{method} looks at each member, and does not combine them"):
            train(spec, tmp_path / method)
    spec = small("method.name=ae_kd", "method.ensemble.members=10")
    with pytest.raises(InputError, match="of 1 to 9 teachers"):
        train(spec, tmp_path / "many")
    assert not (tmp_path / "many/members").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_is_good(tmp_path: Path, small: Make) -> None:
    heard = Heard()
    with pytest.raises(TrainingError, match="not finite"):
        train(small("new.train.learning_rate=1e30"), tmp_path / "a", listener=heard)
    assert heard.trained == ["old", "new"]
    assert load_release(tmp_path / "a", "old").name == "old"
    with pytest.raises(InputError, match="the version 'new' is not finished"):
        load_release(tmp_path / "a")
    assert json.loads((tmp_path / "a/run.json").read_text())["status"] == "stopped"


def test_the_paragon_releases_its_ensemble(tmp_path: Path, small: Make) -> None:
    train(small("method.name=paragon", "method.ensemble.members=3"), tmp_path / "a")
    release = load_release(tmp_path / "a")
    data = load_data({"name": "digits", "test_size": 0.6})
    assert release.members == 3
    rows = flipguard.read_predictions(tmp_path / "a/versions/new/predictions/test.parquet").table(["logits"])
    np.testing.assert_array_equal(np.array(rows["logits"].to_pylist(), np.float32), release.logits(data, "test"))


def as_training_file(finished: Path, path: Path) -> Path:
    """What the old network says about every digit: train, validation and test."""
    release, data = load_release(finished, "old"), load_data({"name": "digits", "test_size": 0.6})
    parts = [release.predictions(data, part) for part in ("train", "test")]
    logits = np.concatenate([np.array(part.table(["logits"])["logits"].to_pylist(), np.float32) for part in parts])
    ids = [name for part in parts for name in part.table(["id"])["id"].to_pylist()]
    label = [code for part in parts for code in part.table(["label"])["label"].to_pylist()]
    Predictions.from_arrays(id=ids[::-1], label=label[::-1], logits=logits[::-1].copy(), classes=data.classes).write(
        path
    )
    return path


MIXED = (*ELODI, "method.mix=0.5")


@pytest.mark.parametrize("method", [("method.name=kd",), MIXED], ids=["kd", "elodi with mix"])
def test_every_form_of_the_same_old_version_gives_the_same_update(
    method: tuple[str, ...], finished: Path, tmp_path: Path, small: Make
) -> None:
    """With ELODI's Eq. 9, too: an old model that was never treated, in whatever form it is left."""
    model = {"name": "mlp", "hidden": [5]}
    file = as_training_file(finished, tmp_path / "old.parquet")
    release, data = load_release(finished, "old"), load_data({"name": "digits", "test_size": 0.6})
    export_release(release, data.test, format="onnx", path=tmp_path / "old.onnx", rows=7)
    forms: dict[str, Any] = {
        "run": str(finished / "versions/old"),
        "checkpoint": {"checkpoint": str(finished / "versions/old/model.safetensors"), "model": model},
        "onnx": {"checkpoint": str(tmp_path / "old.onnx")},
        "predictions": {"predictions": str(file)},
    }
    shared = f"members={tmp_path / 'members'}"
    train(small(*method, shared, "old.method=none"), tmp_path / "trained")
    for name, old in forms.items():
        outcome = train(small(*method, shared, old=old), tmp_path / name)
        assert outcome.comparisons[0].old.version == "old"
        for key, value in weights(tmp_path / name).items():
            torch.testing.assert_close(value, weights(tmp_path / "trained")[key], rtol=1e-4, atol=1e-5, msg=name)


def test_a_run_goes_on_without_the_source_of_its_old_version(finished: Path, tmp_path: Path, small: Make) -> None:
    file = as_training_file(finished, tmp_path / "old.parquet")
    spec = small("method.name=kd", old={"predictions": str(file)})
    train(spec, tmp_path / "a")
    file.unlink()
    (tmp_path / "a/versions/new/model.json").unlink()
    before = weights(tmp_path / "a")
    train(spec, tmp_path / "a")
    assert same(before, weights(tmp_path / "a"))


def chain(references: str, *widths: int) -> dict[str, Any]:
    listed = [{"model": {"name": "mlp", "hidden": [width]}, "references": references} for width in widths]
    return {"old": None, "new": None, "versions": listed}


def test_a_version_added_later_leaves_the_others_as_they_are(tmp_path: Path, small: Make) -> None:
    folder, heard = tmp_path / "a", Heard()
    train(small("method.name=kd", **chain("chain", 3, 5)), folder)
    before = [weights(folder, name) for name in ("v0", "v1")]
    outcome = train(small("method.name=kd", **chain("chain", 3, 5, 7)), folder, listener=heard)
    assert (heard.found, heard.trained) == (["v0", "v1"], ["v2"])
    assert all(same(a, weights(folder, name)) for a, name in zip(before, ("v0", "v1"), strict=True))
    assert [(c.old.version, c.new.version) for c in outcome.comparisons] == [("v0", "v1"), ("v0", "v2"), ("v1", "v2")]
    written = json.loads((folder / "matrix.json").read_text())
    assert written["sum_negative_flips"] == sum(
        c.negative_flips for c in outcome.comparisons if (c.old.version, c.new.version) != ("v0", "v2")
    )


def test_a_chain_s_references_are_the_closest_the_first_or_all(tmp_path: Path, small: Make) -> None:
    """v0 and v1 are the same in all three; with three versions, each choice gives v2 another reference."""
    found = {}
    for references in ("chain", "radial", "full"):
        train(small("method.name=kd", **chain(references, 3, 5, 7)), tmp_path / references)
        found[references] = weights(tmp_path / references, "v2")
    assert same(weights(tmp_path / "chain", "v1"), weights(tmp_path / "full", "v1"))
    for a, b in (("chain", "radial"), ("chain", "full"), ("radial", "full")):
        assert not same(found[a], found[b])


def test_growing_classes_are_compared_over_all_and_over_the_old_ones(tmp_path: Path, small: Make) -> None:
    outcome = train(small("method.name=kd", "old.data.classes=0.5"), tmp_path / "a")
    found = outcome.comparisons[0]
    assert found.old_classes is not None
    assert found.n == 1078
    assert 0 < found.old_classes.labelled < 1078
    assert found.negative_flips == found.old_classes.negative_flips
    assert load_release(tmp_path / "a", "old").classes != load_release(tmp_path / "a").classes


def test_growing_samples_share_the_test_part(tmp_path: Path, small: Make) -> None:
    outcome = train(small("method.name=kd", "old.data.per_class=5"), tmp_path / "a")
    facts = json.loads((tmp_path / "a/run.json").read_text())["data"]
    assert facts["old"]["train"] != facts["new"]["train"]
    assert facts["old"]["test"] == facts["new"]["test"]
    assert outcome.comparisons[0].n == 1078


def test_several_seeds_are_several_runs(tmp_path: Path, small: Make) -> None:
    outcome = train(small("seed=[0, 2]"), tmp_path / "a")
    assert [run.folder.name for run in outcome.runs] == ["seed_0", "seed_2"]
    assert not same(weights(tmp_path / "a/seed_0"), weights(tmp_path / "a/seed_2"))
    alone = train(small("seed=2"), tmp_path / "b")
    assert same(weights(tmp_path / "a/seed_2"), weights(tmp_path / "b"))
    assert alone.comparisons[0].negative_flips == outcome.runs[1].comparisons[0].negative_flips


@pytest.mark.parametrize(("limit", "passed"), [(1.0, True), (0.0001, False)])
def test_the_gate_judges_the_last_update(limit: float, passed: bool, finished: Path, small: Make) -> None:
    """Also of a run that is finished: thresholds decide no weights."""
    outcome = train(small(gate={"max_nfr": limit}), finished)
    assert outcome.found
    assert outcome.passed is passed


def test_an_outcome_without_a_gate_has_no_verdict(finished: Path, small: Make) -> None:
    outcome: Outcome = train(small(), finished)
    assert outcome.passed is None


def test_data_that_changed_under_a_run_is_refused(tmp_path: Path, small: Make) -> None:
    """The same spec over a folder whose files were exchanged."""
    table, folder = tmp_path / "rows", tmp_path / "a"
    table.mkdir()
    spec = small(
        data={"name": "table", "folder": str(table), "train": "train.csv", "test": "test.csv"},
        old={"model": {"name": "mlp", "hidden": [3], "input_size": 2}},
        new={"model": {"name": "mlp", "hidden": [5], "input_size": 2}},
    )
    rows = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(97)]
    for name in ("train", "test"):
        (table / f"{name}.csv").write_text("\n".join(["x,y,label", *rows]))
    train(spec, folder)
    (folder / "versions/new/model.json").unlink()
    (table / "train.csv").write_text("\n".join(["x,y,label", *rows, "1,1,a"]))
    with pytest.raises(InputError, match="the train samples of 'old' are not those that the run was begun with"):
        train(spec, folder)


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "more classes than there are": (
        ("method.name=elodi", "method.difference.k=11"),
        "version old: k=11 classes were asked for, but there are 10",
    ),
    "unknown model": (("new.model.name=mpl",), "version new.model: there is no model 'mpl'; did you mean 'mlp'?"),
    "unknown model option": (("new.model.widht=3",), "version new.model: mlp has no option 'widht'"),
    "model option of another type": (("new.model.hidden=[x]",), "version new.model: mlp cannot be built with"),
    "a width for a list of them": (("new.model.hidden=3",), "version new.model: hidden must be a list of widths, such"),
    "a network for other inputs": (("new.model.input_size=63",), "version new: mlp with none cannot take a step on"),
    "no such device": (("train.device=tpu",), "the device 'tpu' is not there"),
    "too few of a class": (("data.per_class=400",), "digits: too few samples per class"),
    "too large a batch": (("train.batch_size=131",), "version old.train.batch_size 131 is above the 130 training"),
    "no part to choose by": (
        ("train.choose_epoch=validation", "data.validation=null"),
        "version old.train.choose_epoch is validation, and the data has no such part",
    ),
    "a class taken away": (("method.name=kd", "new.data.classes=0.5"), "the version 'old' knows the class "),
    "no run": (("old.run=nowhere", "old.model=null"), "the run folder nowhere does not exist."),
    "no checkpoint": (("old.checkpoint=x.safetensors",), "the checkpoint x.safetensors does not exist."),
    "a pickle": (("old.checkpoint=x.pt",), "version old: x.pt is no .safetensors file; nothing else is loaded."),
    "no predictions": (("old.predictions=x.parquet", "old.model=null"), "x.parquet does not exist."),
    "crops of numbers": (("data.crop=3",), "data has no key 'crop'"),
    "a loader's option of another type": (("data.test_size=all",), "data: digits cannot be loaded with"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_work_is_said_before_anything_is_trained(kind: str, tmp_path: Path, small: Make) -> None:
    changes, expected = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        train(small(*changes), tmp_path / "a")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_a_spec_that_is_put_right_finds_the_folder_free(tmp_path: Path, small: Make) -> None:
    with pytest.raises(InputError, match="there is no model 'mpl'"):
        train(small("new.model.name=mpl", "train.epochs=1"), tmp_path / "a")
    train(small("train.epochs=1"), tmp_path / "a")
    assert load_release(tmp_path / "a").model.name == "mlp"


def test_predictions_without_training_ids_can_only_be_compared_with(
    finished: Path, tmp_path: Path, small: Make
) -> None:
    old = {"predictions": str(finished / "versions/old/predictions/test.parquet")}
    outcome = train(small(old=old), tmp_path / "a")
    assert outcome.comparisons[0].negative_flips == train(small(), finished).comparisons[0].negative_flips
    with pytest.raises(InputError, match=r"lacks 130 of the 130 training ids .* and kd needs logits for each"):
        train(small("method.name=kd", old=old), tmp_path / "b")


def test_predictions_of_other_samples_are_refused(tmp_path: Path, small: Make) -> None:
    Predictions.from_arrays(id=["x", "y"], label=[0, 1], prediction=[0, 1]).write(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="covers no part of digits"):
        train(small(old={"predictions": str(tmp_path / "x.parquet")}), tmp_path / "a")


def _one_start(finished: Path, method: str) -> list[str]:
    return [f"method.name={method}", f"new.model.init={finished / 'versions/new/model.safetensors'}", "train.epochs=1"]


@pytest.mark.parametrize("method", ["codistill_skl", "codistill_ce", "graft", "twins"])
def test_networks_that_learn_from_each_other_need_starts_that_differ(
    method: str, finished: Path, tmp_path: Path, small: Make
) -> None:
    with pytest.raises(InputError, match=r"version new: .* start from the same weights and would stay equal"):
        train(small(*_one_start(finished, method)), tmp_path / "a")


def test_dropout_takes_networks_of_one_start_apart(finished: Path, tmp_path: Path, small: Make) -> None:
    spec = small(*_one_start(finished, "codistill_skl"), "new.model.dropout=0.2")
    train(spec, tmp_path / "a")
    logged = (tmp_path / "a/versions/new/metrics.jsonl").read_text().splitlines()
    assert json.loads(logged[-1])["terms"]["disagreement"] > 0


@pytest.mark.parametrize("source", ["", "versions/old"])
def test_a_version_cannot_come_from_its_own_run(source: str, finished: Path, small: Make) -> None:
    with pytest.raises(InputError, match="lies in this run's own folder"):
        train(small(old=str(finished / source)), finished)


def test_a_network_that_is_the_old_one_again_is_told_of(finished: Path, small: Make, tmp_path: Path) -> None:
    """The same network, data and seed: what looks like an update without a flip is none."""
    first = train(small(), finished)
    assert first.notes == ()
    again = train(small(old={"run": str(finished)}), tmp_path / "again")
    assert again.notes[0].startswith(
        "'new' is 'old' to the bit, as happens where data, network, method and seed are the same"
    )
    assert train(small(old={"run": str(finished)}, seed=3), tmp_path / "other").notes == ()
