"""Texts: a network is asked in its own tokens, whoever asks, and whatever tokens the next version has."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import flipguard
from flipguard.cli.app import app
from flipguard.data import encoded_by, load_data
from flipguard.ensembles import OwnInputs
from flipguard.releases import TrainSpec, load_release, train
from flipguard.releases.export import export_release
from flipguard.releases.listener import Listener
from flipguard.releases.references import Task, references_of
from flipguard.spec import parse_training_spec
from flipguard.types import Batch, InputError

TOPICS = ("election minister treaty", "match goal coach", "market shares profit", "software chip rocket")
MODEL = {"name": "text_transformer", "width": 8, "heads": 2, "layers": 1, "vocabulary": 40, "length": 9}
torch.set_num_threads(1)


def write_news(folder: Path, *, day: str) -> Path:
    """Texts that share their topics' words; the other words differ by `day`, and with them a learnt word list."""
    folder.mkdir()
    for part, rows in (("train", 80), ("test", 44)):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            for i in range(rows):
                said = f"{day if part == 'train' else 'day'} {i % 7} {day * (1 + i % 3) if part == 'train' else ''}"
                writer.writerow([1 + i % 4, TOPICS[i % 4], said])
    return folder


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_news(tmp_path_factory.mktemp("news") / "monday", day="monday ")


def spec(news: Path, **sections: Any) -> TrainSpec:
    words: dict[str, Any] = {"encode": {"words": 17, "length": 5}}
    whole = {
        "data": {"name": "ag-news", "folder": str(news), "validation": 12, **words},
        "versions": [
            {"name": "few", "model": MODEL},
            {"name": "many", "model": MODEL, "data": {"encode": {"words": 31, "length": 9}}, "method": "kd"},
        ],
        "train": {"epochs": 3, "batch_size": 16, "optimiser": "adamw", "learning_rate": 0.02, "device": "cpu"},
        **sections,
    }
    return parse_training_spec(whole)


@pytest.fixture(scope="module")
def run(news: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "words"
    train(spec(news), folder)
    return folder


def logits(path: Path) -> Any:
    return np.array(flipguard.read_predictions(path).table(["logits"])["logits"].to_pylist(), np.float32)


def predict(run: Path, news: Path, out: Path, *more: str) -> Any:
    data = [part for each in ("name=ag-news", f"folder={news}", *more) for part in ("--data", each)]
    result = CliRunner().invoke(app, ["predict", str(run), "--version", "few", *data, "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    return logits(out)


def test_the_tokenizer_that_travels_is_the_one_that_is_used(run: Path, news: Path, tmp_path: Path) -> None:
    """With no encoder named, with another one, and on data from which other words would be learnt."""
    stored = logits(run / "versions/few/predictions/test.parquet")
    other = write_news(tmp_path / "friday", day="friday ")
    encode = {"words": 17, "length": 5}
    lists = [load_data({"name": "ag-news", "encode": encode}, folder=each).encoder for each in (news, other)]
    assert len({each.fingerprint() for each in lists if each is not None}) == 2
    for number, (folder, more) in enumerate([(news, []), (news, ["encode.words=31"]), (other, [])]):
        said = predict(run, folder, tmp_path / f"{number}.parquet", *more)
        np.testing.assert_allclose(said, stored, atol=1e-5)


def test_a_version_is_held_to_an_old_one_of_other_tokens(run: Path, news: Path, tmp_path: Path) -> None:
    old = load_release(run, "few")
    wanted = spec(news)
    data = load_data({"name": "ag-news", "encode": {"words": 31, "length": 9}}, folder=news)
    assert wanted.versions is not None
    task = Task(wanted.versions[1], wanted.data, data, (old,), tmp_path, tmp_path, "cpu", Listener())
    reference = references_of(task, ["old"])["old"]
    assert isinstance(reference, OwnInputs)
    index = torch.tensor([7, 3, 61])
    batch = Batch({n: t[index] for n, t in data.train.x.items()}, data.train.y[index], index, *torch.zeros(2))  # type: ignore[union-attr]
    expected = old.logits(encoded_by(data, old.encoder), "train")[index]  # type: ignore[arg-type]
    np.testing.assert_allclose(reference(batch).logits[0].numpy(), expected, atol=1e-5)
    features = reference(batch, features=True)
    np.testing.assert_allclose(features.logits[0].numpy(), expected, atol=1e-5)
    assert features.features is not None
    np.testing.assert_allclose(reference.chosen(batch, torch.tensor([0])).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["weight_interpolation", "soup"])
def test_weights_of_other_tokens_are_not_averaged(method: str, news: Path, tmp_path: Path) -> None:
    """A row of an embedding is a word, and another word in the other network: the shapes agree, the mean is nothing."""

    def versions(data: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"name": "few", "model": MODEL},
            {"name": "many", "model": MODEL, "data": data, "method": {"name": method}},
        ]

    with pytest.raises(InputError, match=f"version many: {method} averages weights, and 'few' knows other tokens"):
        train(spec(news, versions=versions({"encode": {"words": 31, "length": 5}})), tmp_path / "run")
    assert len(train(spec(news, versions=versions({})), tmp_path / "same").comparisons) == 1


def test_figures_are_of_what_the_old_version_says_in_its_own_tokens(run: Path) -> None:
    line = json.loads((run / "versions/many/metrics.jsonl").read_text().splitlines()[-1])
    assert line["part"] == "validation"
    path = run / "versions/few/predictions/validation.parquet"
    label = np.array(flipguard.read_predictions(path).table(["label"])["label"].to_pylist())
    wrong = logits(path).argmax(axis=-1) != label
    assert line["error_rate_old"] == pytest.approx(wrong.mean())
    assert load_release(run, "few").encoder.fingerprint() != load_release(run, "many").encoder.fingerprint()  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["export", "release"])
def test_an_old_checkpoint_brings_its_tokenizer(form: str, run: Path, news: Path, tmp_path: Path) -> None:
    old = load_release(run, "few")
    data = load_data("ag-news", folder=news)
    path = run / "versions/few/model.safetensors"
    if form == "export":
        path = tmp_path / "few.safetensors"
        export_release(old, old.known(data).test, format="safetensors", path=path)
    wanted = spec(news)
    assert wanted.versions is not None
    given = {"name": "few", "checkpoint": str(path), "model": {**wanted.versions[0].model.model_dump()}}  # type: ignore[union-attr]
    many = wanted.versions[1].model_dump(exclude_none=True, exclude_unset=True)
    train(spec(news, versions=[given, many]), tmp_path / "a")
    again = load_release(tmp_path / "a", "few")
    assert again.encoder is not None
    np.testing.assert_allclose(again.logits(data), old.logits(data), atol=1e-6)
    np.testing.assert_allclose(
        logits(tmp_path / "a/versions/few/predictions/test.parquet"), old.logits(data), atol=1e-6
    )


def test_tensors_of_another_make_are_taken_as_they_are(news: Path, run: Path) -> None:
    old = load_release(run, "few")
    data = old.known(load_data("ag-news", folder=news))
    assert old.known(data) is data
    bare = replace(data, encoder=None)
    assert old.known(bare) is bare
    lost = load_release(run, "many").known(data).map(lambda split: replace(split, texts=None))
    with pytest.raises(InputError, match="encoded by another tokenizer than the network's"):
        old.known(lost)
