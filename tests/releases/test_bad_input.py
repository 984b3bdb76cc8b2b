"""Updates that cannot be: one clear line before anything is trained, and what is there already stays as it is."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flipguard.data import load_data
from flipguard.predictions import Predictions
from flipguard.releases import TrainSpec, load_release, train
from flipguard.spec import parse_training_spec
from flipguard.types import InputError

Make = Callable[..., TrainSpec]


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file but the lock, with its size and the moment it was written."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def assert_refused(spec: TrainSpec, folder: Path, expected: str, *, trust: bool = False) -> None:
    before = files(folder)
    with pytest.raises(InputError) as caught:
        train(spec, folder, trust=trust)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(folder) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "chain"
    train(small(**chain(mlp(5))), folder)
    return folder


def mlp(width: int, **more: Any) -> dict[str, Any]:
    return {"model": {"name": "mlp", "hidden": [width]}, **more}


def chain(*versions: dict[str, Any]) -> dict[str, Any]:
    return {"old": None, "new": None, "versions": list(versions)}


def test_views_are_of_logits_alone(small: Make, tmp_path: Path) -> None:
    """Found before the old version is trained for a method that cannot have its head."""
    assert_refused(small("method.name=bct", "train.views=2"), tmp_path / "run", "not stored logits")


def test_views_are_refused_before_an_ensemble_is_trained(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elodi = ("method.name=elodi", "method.ensemble.members=2", "train.views=2")
    message = "method.ensemble.offline asks the members of plain samples"
    with pytest.raises(InputError, match=message):
        train(small(*elodi, "method.ensemble.offline=true"), tmp_path / "run")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part in ("train", "val"):
        for code in ("a", "b"):
            for number in range(16):
                home = tmp_path / "images" / part / code
                home.mkdir(parents=True, exist_ok=True)
                image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(home / f"{number}.png")
    data = {"name": "image-folder", "folder": str(tmp_path / "images"), "size": 8, "resize": 8}
    assert_refused(small(*elodi, data=data), tmp_path / "run", "these are files on disk: leave it out.")
    # What a launcher says: two processes train.
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    assert_refused(small(*elodi, "train.batch_size=32"), tmp_path / "run", "views is for one process")


def test_what_cannot_be_dealt_out_is_refused_before_an_ensemble_is_trained(small: Make, tmp_path: Path) -> None:
    elodi = ("method.name=elodi", "method.ensemble.members=2", "train.dealt=true")
    for key, message in (("offline", "offline keeps what all members say"), ("spread", "spread has each process ask")):
        with pytest.raises(InputError, match=rf"method\.ensemble\.{message}"):
            train(small(*elodi, f"method.ensemble.{key}=true"), tmp_path / "run")
    compares = small("method.name=ae_kd", *elodi[1:])
    assert_refused(compares, tmp_path / "run", "compares the members of 'ensemble', and dealt asks one of each row")
    assert_refused(small(*elodi, "train.accumulate=32", "train.batch_size=32"), tmp_path / "run", "none of 1 rows")


def test_a_network_that_takes_one_size_only_is_refused_growing_images(small: Make, tmp_path: Path) -> None:
    """`small`'s networks read all pixels at once; so do members that are trained, or released, before anyone asks."""
    for way in (("train.scales=[0.5, 1]",), ("method.name=paragon", "new.train.scales=[0.5, 1]")):
        assert_refused(small(*way), tmp_path / "run", "mlp takes whole images and none at 0.5 of their sides (")
    members = small("method.name=elodi", "method.ensemble.members=2", "method.ensemble.train={scales: [0.5, 1]}")
    assert_refused(members, tmp_path / "run", "none at 0.5 of their sides (")


def test_branches_that_keep_nothing_to_compute_again_from_are_refused(small: Make, tmp_path: Path) -> None:
    graft = ("new.method.name=graft", "new.model.hidden=[7, 7]", "new.train.checkpoint_activations=true")
    assert_refused(small(*graft), tmp_path / "run", "leave checkpoint_activations out")


def started(width: int, init: Path) -> dict[str, Any]:
    return {"model": {"name": "mlp", "hidden": [width], "init": str(init)}}


@pytest.mark.parametrize("later", ["v1", "v2"])
def test_versions_that_form_a_cycle(later: str, finished: Path, small: Make) -> None:
    """v1 starts from itself, or from v2, which comes after it."""
    init = finished / "versions" / later / "model.safetensors"
    spec = small(**chain(mlp(5), started(5, init), mlp(5)))
    assert_refused(spec, finished, f"version v1: init {init} is no earlier version of this run")


def test_two_runs_that_wait_for_each_other(tmp_path: Path, small: Make) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert_refused(small(old=str(b)), a, f"the run folder {b} does not exist.")
    assert_refused(small(old=str(a)), b, f"the run folder {a} does not exist.")
    a.mkdir()
    assert_refused(small(old=str(a)), b, f"{a} is no run folder: it has no spec.yaml.")


def test_a_version_may_start_from_an_earlier_one_of_its_run(tmp_path: Path, small: Make) -> None:
    train(small(**chain(mlp(5))), tmp_path / "a")
    init = tmp_path / "a/versions/v0/model.safetensors"
    train(small(**chain(mlp(5), started(5, init))), tmp_path / "a")
    assert load_release(tmp_path / "a").name == "v1"


REMOVED: dict[str, dict[str, Any]] = {
    "trained on fewer": mlp(5, data={"classes": 0.5}),
    "trained on other ones": mlp(5, data={"classes": ["0", "1", "2"]}),
}


@pytest.mark.parametrize("case", REMOVED)
@pytest.mark.parametrize("method", ["none", "elodi", "kd", "soup"])
def test_a_class_taken_away(case: str, method: str, finished: Path, small: Make) -> None:
    """Whether or not the method looks at the old version: its flips could not be told."""
    spec = small(f"method.name={method}", **chain(mlp(5, method="none"), REMOVED[case]))
    assert_refused(spec, finished, "which digits has not: a class cannot be taken away between versions.")


def test_a_class_that_only_the_old_file_or_checkpoint_knows(finished: Path, tmp_path: Path, small: Make) -> None:
    data = load_data({"name": "digits", "test_size": 0.6})
    classes = [*data.classes[:9], "nine"]
    rows: dict[str, Any] = {"id": data.test.ids, "label": data.test.y.numpy(), "logits": torch.zeros(1078, 10)}
    Predictions.from_arrays(**rows, classes=classes).write(tmp_path / "old.parquet")
    given = {"predictions": str(tmp_path / "old.parquet")}
    assert_refused(small(old=given), tmp_path / "a", "the version 'old' knows the class 'nine', which digits has not")
    weights = {**mlp(5), "checkpoint": str(finished / "versions/v0/model.safetensors"), "classes": classes}
    assert_refused(small(old=weights), tmp_path / "b", "the version 'old' knows the class 'nine', which digits has not")


def test_an_old_prediction_file_that_lacks_training_ids(tmp_path: Path, small: Make) -> None:
    data = load_data({"name": "digits", "test_size": 0.6})
    # The fixture keeps 13 rows of each class for training, so half of all rows are sure to lack some of them.
    parts = [data.train.select(range(0, len(data.train), 2)), data.test]
    ids = np.concatenate([part.ids for part in parts])
    label = np.concatenate([part.y.numpy() for part in parts])
    rows: dict[str, Any] = {"id": ids, "label": label, "logits": torch.zeros(len(ids), 10)}
    Predictions.from_arrays(**rows, classes=data.classes).write(tmp_path / "old.parquet")
    old = {"predictions": str(tmp_path / "old.parquet")}
    for method in ("kd", "elodi"):
        mix = ["method.mix=0.5"] if method == "elodi" else []
        spec = small(f"method.name={method}", *mix, old=old)
        assert_refused(spec, tmp_path / method, "of the 130 training ids (first: digit_")
    # It can still be compared with.
    assert train(small(old=old), tmp_path / "none").comparisons[0].n == 1078


FACTORIES = """
from torch import nn

def nine(*, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))
"""


def test_members_that_disagree_on_classes(tmp_path: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nine_classes.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    spec = small("method.name=elodi", "method.ensemble.model=[mlp, 'nine_classes:nine']")
    inside = "version old: Sequential has no linear layer with 10 outputs inside it"
    assert_refused(spec, tmp_path / "a", inside, trust=True)
    earlier = chain(mlp(5, data={"classes": 0.5}), mlp(5), mlp(7, references="full"))
    expected = "version v2: 'v2' cannot be held to all earlier versions: they know different classes."
    assert_refused(small("method.name=kd", **earlier), tmp_path / "b", expected)
    sys.modules.pop("nine_classes", None)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        logits = self.layer(x.flatten(1))
        return logits, logits.softmax(-1)


def as_onnx(network: nn.Module, path: Path, *shape: int) -> Path:
    torch.onnx.export(network.eval(), (torch.rand(2, *shape),), str(path), dynamo=True, verbose=False)
    return path


ONNX: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "too few logits": (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
        (1, 8, 8),
        "logits are (batch, 10 classes)",
    ),
    "logits for each pixel": (nn.Linear(8, 10), (1, 8, 8), "logits are (batch, 10 classes)"),
    "other inputs": (
        nn.Sequential(nn.Flatten(), nn.Linear(49, 10)),
        (1, 7, 7),
        "takes inputs of shape (1, 7, 7) a sample, and the data has (1, 8, 8).",
    ),
    "two outputs": (Two(), (1, 8, 8), "say which one holds the logits"),
}


@pytest.mark.parametrize("case", ONNX)
@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_with_the_wrong_outputs(case: str, tmp_path: Path, small: Make) -> None:
    network, shape, expected = ONNX[case]
    path = as_onnx(network, tmp_path / "old.onnx", *shape)
    assert_refused(small(old={"checkpoint": str(path)}), tmp_path / "a", expected)


def test_a_checkpoint_of_other_classes_is_asked_for_their_names(finished: Path, tmp_path: Path, small: Make) -> None:
    weights = finished / "versions/v0/model.safetensors"
    given = {**mlp(5), "checkpoint": str(weights), "classes": ["0", "1", "2"]}
    assert_refused(small(old=given), tmp_path / "a", "holds another network")


def test_a_vocabulary_smaller_than_the_encoder_s(tmp_path: Path) -> None:
    """The word that is too many stands in the last rows only, which no rehearsal would meet."""
    texts = [(1 + i % 2, "word", f"one two w{i}") for i in range(60)]
    for part in ("train", "test"):
        with (tmp_path / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(texts)
    raw = {
        "data": {"name": "ag-news", "folder": str(tmp_path), "encode": {"words": 61, "length": 5}},
        "new": {"model": {"name": "text_transformer", "vocabulary": 60, "width": 4, "heads": 2, "length": 5}},
        "train": {"epochs": 1, "batch_size": 16, "device": "cpu"},
    }
    expected = "version new: the network's embedding has fewer rows than the 61 tokens that the texts are encoded with"
    assert_refused(parse_training_spec(raw), tmp_path / "a", expected)
    raw["new"]["model"]["vocabulary"] = 61
    train(parse_training_spec(raw), tmp_path / "a")


def test_a_mean_over_epochs_and_the_best_of_them(tmp_path: Path, small: Make) -> None:
    """Said before anything is trained, and of which version."""
    spec = small("train.average=1", "train.choose_epoch=validation")
    assert_refused(spec, tmp_path / "a", "train.average releases a mean over epochs, and choose_epoch: validation one")
