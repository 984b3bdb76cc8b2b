"""transformers' own Trainer on a tiny BERT with random weights: the same updates as a plain loop, and its flips."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import flipguard
from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.integrations.transformers import REPORTED, FlipTrainer, flip_metrics
from flipguard.methods import METHODS, build_method
from flipguard.models import split
from flipguard.models.adapters import Keywords
from flipguard.predictions import Predictions
from flipguard.types import Batch, InputError

C, LENGTH, ROWS = 3, 7, 29
WORDS = ("bill refund charge invoice", "login password locked account", "parcel late courier address")
VOCABULARY = {word: code for code, word in enumerate(["<pad>", *" ".join(WORDS).split(), "my", "the", "is"])}
FEATURES = {"bct", "ract"}
OBJECTIVES = [n for n, card in METHODS.items() if card.kind == "objective" and n != "dropout"]


def rows(seed: int, number: int = ROWS) -> list[dict[str, Any]]:
    """Requests of three kinds, each with two words of its kind among words that say nothing."""
    random = np.random.default_rng(seed)
    found = []
    for place in range(number):
        label = place % C
        words = [*random.choice(WORDS[label].split(), 2), *random.choice(["my", "the", "is"], 3)]
        codes = [VOCABULARY[word] for word in random.permutation(words)]
        mask = [1] * len(codes) + [0] * (LENGTH - len(codes))
        found.append(
            {"input_ids": codes + [0] * (LENGTH - len(codes)), "attention_mask": mask, "labels": label, "index": place}
        )
    return found


def bert(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=LENGTH,
        num_labels=C,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_steps": 4,
        "logging_steps": 2,
        "per_device_train_batch_size": 10,
        "per_device_eval_batch_size": 11,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "dataloader_pin_memory": False,
    }
    return transformers.TrainingArguments(**{**usual, **options})


class InOrder(FlipTrainer):
    """Rows in the order in which they lie, so that a plain loop can do the same."""

    def _get_train_sampler(self, *positional: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def batches(size: int) -> Iterator[dict[str, Tensor]]:
    data = rows(0)
    while True:
        for first in range(0, len(data), size):
            part = data[first : first + size]
            yield {name: torch.tensor([row[name] for row in part]) for name in part[0]}


def by_hand(name: str, model: nn.Module, old: nn.Module, *, steps: int, size: int) -> Tensor:
    method, student = build_method(name), SingleStudent(Keywords(model))
    references = {"old": NetworkReference("old", [Keywords(old)])}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, inputs in zip(range(steps), batches(size), strict=False):
        x = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        batch = Batch(x, inputs["labels"], inputs["index"], torch.tensor(step / steps), torch.tensor(step))
        method(student, references, batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return weights(model)


@pytest.mark.parametrize("name", ["none", "kd", "ldi"])
def test_updates_are_those_of_a_plain_loop(name: str, tmp_path: Path) -> None:
    old = bert(1)
    trainer = InOrder(bert(0), arguments(tmp_path), train_dataset=rows(0), method=name, old=old)
    trainer.train()
    expected = by_hand(name, bert(0), old, steps=4, size=10)
    torch.testing.assert_close(weights(trainer.release()), expected, rtol=1e-5, atol=1e-6)


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    """The Trainer must divide a method's mean by the number of batches, which it does not for losses of its own."""
    whole = InOrder(bert(0), arguments(tmp_path, max_steps=2), train_dataset=rows(0, 20), method="kd", old=bert(1))
    parts = InOrder(
        bert(0),
        arguments(tmp_path, max_steps=2, per_device_train_batch_size=5, gradient_accumulation_steps=2),
        train_dataset=rows(0, 20),
        method="kd",
        old=bert(1),
    )
    for trainer in (whole, parts):
        trainer.train()
    torch.testing.assert_close(weights(whole.release()), weights(parts.release()), rtol=1e-5, atol=1e-6)
    assert not torch.equal(weights(whole.release()), weights(bert(0)))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_trained_and_its_terms_are_logged(name: str, tmp_path: Path) -> None:
    def network(seed: int) -> nn.Module:
        return split(Keywords(bert(seed)), classes=C) if name in FEATURES else bert(seed)

    trainer = FlipTrainer(
        network(0),
        arguments(tmp_path, max_steps=2, learning_rate=0.001),
        train_dataset=rows(0),
        eval_dataset=rows(1),
        method=build_method(name, members=2) if name in ("graft", "scion", "twins") else name,
        old=network(1),
        ensemble=[network(2), network(3), network(5)],
        peers=[network(4)],
    )
    before = weights(trainer.model).clone()
    trainer.train()
    assert not torch.equal(weights(trainer.model), before)
    (logged,) = [line for line in trainer.state.log_history if "loss" in line]
    terms = [key for key in logged if key.startswith("loss_")]
    assert terms
    assert all(np.isfinite(logged[key]) for key in ("loss", *terms))
    assert np.isfinite(trainer.evaluate()["eval_loss"])
    # A batch ensemble is its own release; everything else is a network of the kind that was given.
    assert (type(trainer.release()) is type(network(0))) == (name != "batch_ensemble")


def test_flips_are_those_of_a_comparison(tmp_path: Path) -> None:
    held, names = rows(1, 61), ["billing", "access", "delivery"]
    old = FlipTrainer(bert(1), arguments(tmp_path, optim="adamw_torch", learning_rate=0.01), train_dataset=rows(0))
    old.train()
    ids = [f"mail {row['index']}" for row in held]
    label = [row["labels"] for row in held]

    def said(trainer: FlipTrainer) -> Predictions:
        found = trainer.predict(held)
        return Predictions.from_arrays(id=ids, label=label, logits=found.predictions, classes=names)

    said(old).write(tmp_path / "old.parquet")
    new = FlipTrainer(
        bert(0),
        arguments(tmp_path, eval_strategy="steps", eval_steps=2, learning_rate=0.01, optim="adamw_torch"),
        train_dataset=rows(0),
        eval_dataset=held,
        method="kd",
        old=old.release(),
        compute_metrics=flip_metrics(tmp_path / "old.parquet", ids, classes=names),
    )
    new.train()
    evaluated = [line for line in new.state.log_history if "eval_negative_flip_rate" in line]
    assert [line["step"] for line in evaluated] == [2, 4]
    found = flipguard.compare(tmp_path / "old.parquet", said(new))
    assert found.churn is not None
    assert found.churn.value
    for name in REPORTED:
        expected = getattr(found, name).value
        assert evaluated[-1][f"eval_{name}"] == pytest.approx(expected, nan_ok=True), name


def test_the_release_is_transformers_own_and_is_saved_by_it(tmp_path: Path) -> None:
    for method, more in (("kd", {}), ("codistill_skl", {"peers": [bert(2)]})):
        given = bert(0)
        trainer = FlipTrainer(given, arguments(tmp_path), train_dataset=rows(0), method=method, old=bert(1), **more)
        trainer.train()
        assert trainer.release() is given
        given.save_pretrained(tmp_path / method)
        again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / method)
        assert torch.equal(weights(again), weights(given))


def test_a_checkpoint_of_the_trainer_is_the_model_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    trainer = FlipTrainer(bert(0), arguments(tmp_path), train_dataset=rows(0), method="kd", old=bert(1))
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert load_file(tmp_path / "saved/model.safetensors").keys() == bert(0).state_dict().keys()


def test_cached_logits_are_found_by_the_column_index(tmp_path: Path) -> None:
    old, data = bert(1).eval(), rows(0)
    inputs = {name: torch.tensor([row[name] for row in data]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        cached = CachedReference("old", old(**inputs).logits[None])
    live = FlipTrainer(bert(0), arguments(tmp_path), train_dataset=data, method="kd", old=old)
    held = FlipTrainer(bert(0), arguments(tmp_path), train_dataset=data, method="kd", old=cached)
    for trainer in (live, held):
        trainer.train()
    torch.testing.assert_close(weights(held.release()), weights(live.release()), rtol=1e-5, atol=1e-6)
    bare = [{name: row[name] for name in row if name != "index"} for row in data]
    blind = FlipTrainer(bert(0), arguments(tmp_path), train_dataset=bare, method="kd", old=cached)
    with pytest.raises(InputError, match="'old' holds logits by row"):
        blind.train()


def test_what_cannot_be_trained_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pass old="):
        FlipTrainer(bert(0), arguments(tmp_path), train_dataset=rows(0), method="kd")
    shares = [{**row, "labels": [0.0, 1.0, 0.0]} for row in rows(0)]
    with pytest.raises(InputError, match="labels must be one class code a row"):
        FlipTrainer(bert(0), arguments(tmp_path), train_dataset=shares).train()
    few = flip_metrics({"id": [0, 1], "prediction": [0, 1]}, [0, 1])
    with pytest.raises(InputError, match="29 rows were evaluated, and flip_metrics was given 2 ids"):
        FlipTrainer(bert(0), arguments(tmp_path), eval_dataset=rows(0), compute_metrics=few).evaluate()
