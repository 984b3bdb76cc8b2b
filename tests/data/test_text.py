"""Texts: encoders and their files, CLINC-150 in its published form, and a text classifier from CSV to predictions."""

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import DataSet, Split, WordEncoder, load_data, read_encoder
from flipguard.data.encoders import Encoder, FileEncoder
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, as_predictions, predict_logits, train_network
from flipguard.types import InputError

torch.set_num_threads(1)


def test_words_are_counted_and_unknown_ones_marked() -> None:
    encoder = WordEncoder.learn(["the cat the dog", "The emu!", "ZEBRA cat"], size=5, length=3)
    assert isinstance(encoder, Encoder)
    assert encoder.words == ("the", "cat", "!")
    assert encoder.size == 5
    x = encoder(["Cat the cat the", "a", "", "!"])
    assert x["input_ids"].tolist() == [[3, 2, 3], [1, 0, 0], [1, 0, 0], [4, 0, 0]]
    assert x["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert encoder([])["input_ids"].shape == (0, 3)
    assert int(encoder(["the cat ! unheard"])["input_ids"].max()) < encoder.size


def test_words_survive_a_file_and_another_process(tmp_path: Path) -> None:
    encoder = WordEncoder.learn(["naïve café – “quoted”", "naïve"], size=50, length=7)
    encoder.write(tmp_path / "tokenizer.json")
    for again in (
        read_encoder(tmp_path),
        read_encoder(tmp_path / "tokenizer.json"),
        pickle.loads(pickle.dumps(encoder)),
    ):
        assert again == encoder
        assert again.fingerprint() == encoder.fingerprint()
    assert read_encoder(tmp_path, length=11)(["café"])["input_ids"].shape == (1, 11)
    assert WordEncoder(encoder.words, 8).fingerprint() != encoder.fingerprint()
    assert WordEncoder(encoder.words[:-1], 7).fingerprint() != encoder.fingerprint()


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A word-level tokenizer.json as the tokenizers library writes it, padding to a length of its own."""
    words = {"[PAD]": 3, "[UNK]": 0, "cat": 1, "dog": 2}
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 3,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def test_a_tokenizer_file(tokenizer_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'flipguard[text]'")
    encoder = read_encoder(tokenizer_file)
    assert isinstance(encoder, FileEncoder)
    assert encoder.size == 4
    x = encoder(["Dog cat emu", "cat cat cat dog dog dog"])
    assert x["input_ids"].tolist() == [[2, 1, 0, 3, 3], [1, 1, 1, 2, 2]]
    assert x["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    shorter = read_encoder(tokenizer_file, length=2)
    shorter.write(tmp_path / "release.json")
    for again in (read_encoder(tmp_path / "release.json"), pickle.loads(pickle.dumps(shorter))):
        assert again(["Dog cat emu"])["input_ids"].tolist() == [[2, 1]]
        assert again.fingerprint() == shorter.fingerprint() != encoder.fingerprint()
    with pytest.raises(InputError, match="the tokenizer cannot be read"):
        FileEncoder('{"model": 3}')


def test_bad_tokenizer_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match="no readable tokenizer file"):
        read_encoder(path)
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="must hold one JSON object"):
        read_encoder(path)
    path.write_text('{"format": "flipguard words", "words": ["a"]}')
    with pytest.raises(InputError, match="'length' is missing or of another kind"):
        read_encoder(path)
    with pytest.raises(InputError, match="a length of at least 1 token, not 0"):
        WordEncoder(("a",), 0)
    with pytest.raises(InputError, match="size 2 is too few"):
        WordEncoder.learn(["a"], size=2)


INTENTS = ("book_flight", "cancel", "weather")


def write_clinc(path: Path, **changes: Any) -> None:
    def rows(n: int, *, oos: bool = False) -> list[list[str]]:
        return [[f"say {i} please", "oos" if oos else INTENTS[i % 3]] for i in range(n)]

    parts = {"oos_val": rows(2, oos=True), "val": rows(5), "train": rows(11), "oos_test": rows(3, oos=True)}
    path.write_text(json.dumps({**parts, "test": rows(7), "oos_train": rows(1, oos=True), **changes}))


def test_clinc150_as_published(tmp_path: Path) -> None:
    write_clinc(tmp_path / "data_full.json")
    data = load_data("clinc150", folder=tmp_path)
    assert data.classes == INTENTS
    assert data.train.x[4] == "say 4 please"  # type: ignore[index]
    assert data.train.y.tolist()[:4] == [0, 1, 2, 0]
    sizes = {name: len(part) for name, part in data.parts().items()}
    assert sizes == {"train": 11, "test": 7, "validation": 5, "oos_val": 2, "oos_test": 3, "oos_train": 1}
    assert data.part("oos_test").y.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": []}, "test must be a list of .text, intent. with at least one row"),
        ({"val": [["only text"]]}, "row 1 of val must be .text, intent., two strings"),
        ({"test": [["a", "cancel"], ["b", "unheard"]]}, "test has the intent 'unheard', which no training row has"),
    ],
)
def test_clinc150_errors(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_clinc(tmp_path / "data_full.json", **changes)
    with pytest.raises(InputError, match=message):
        load_data("clinc150", folder=tmp_path)
    (tmp_path / "data_full.json").write_text('{"train": []}')
    with pytest.raises(InputError, match="must hold the parts train, val, test"):
        load_data("clinc150", folder=tmp_path)


@pytest.mark.parametrize(
    "encode", [{}, {"words": 10, "tokenizer": "x"}, {"length": 5}, {"words": 10, "lenght": 5}], ids=str
)
def test_encode_options(tmp_path: Path, encode: dict[str, Any]) -> None:
    write_clinc(tmp_path / "data_full.json")
    with pytest.raises(InputError, match="encode takes tokenizer or words, one of them, and length"):
        load_data({"name": "clinc150", "encode": encode}, folder=tmp_path)


def test_only_texts_are_encoded() -> None:
    with pytest.raises(InputError, match="a word list is learnt from raw texts, and digits has none"):
        load_data({"name": "digits", "encode": {"words": 10}})


TOPICS = ("election minister treaty", "match goal coach", "market shares profit", "software chip rocket")


def write_news(path: Path, rows: int, seed: int) -> None:
    """Rows like AG News': a class, a title, a description of which some words tell the class."""
    rng = np.random.default_rng(seed)
    filler = ["the", "of", "in", "a", "said", "on", "new", "its", "for", "after", "week", "year"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        for _ in range(rows):
            topic = int(rng.integers(4))
            words = [*rng.choice(TOPICS[topic].split(), 2), *rng.choice(filler, 9)]
            writer.writerow([topic + 1, " ".join(rng.permutation(words[:5])), " ".join(rng.permutation(words[5:]))])


@pytest.fixture
def news(tmp_path: Path) -> DataSet:
    write_news(tmp_path / "train.csv", 331, 0)
    write_news(tmp_path / "test.csv", 83, 1)
    return load_data({"name": "ag-news", "encode": {"words": 100, "length": 13}}, folder=tmp_path)


def test_a_text_classifier_from_csv_to_predictions(news: DataSet, tmp_path: Path) -> None:
    assert isinstance(news.encoder, WordEncoder)
    options = {"vocabulary": news.encoder.size, "length": 13, "width": 16, "heads": 2, "layers": 1}
    recipe = Recipe(epochs=4, batch_size=31, optimiser="adamw", learning_rate=0.01, weight_decay=0.01)
    spec = ModelSpec("text_transformer", options)
    network = train_network(spec, news, build_method("none"), recipe, seeds=Seeds.of(1))
    logits = predict_logits(network, news)
    assert (logits.argmax(-1) == news.test.y.numpy()).mean() > 0.9
    said = as_predictions(logits, news)
    assert said.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert said.rows == 83
    news.encoder.write(tmp_path / "tokenizer.json")
    again = read_encoder(tmp_path)(["coach said the match goal"])
    network.eval()
    assert int(network(again).argmax()) == 1


def test_the_encoder_stays_with_parts_of_the_data(news: DataSet) -> None:
    assert news.map(lambda part: part.select([0, 2])).encoder is news.encoder
    raw = Split(("a b",), torch.tensor([0]), np.arange(1))
    assert DataSet("raw", raw, raw, ("x",), "text").encoder is None
