"""References that are asked once of every view: the same training where nothing is saved, and the views themselves."""

import gc
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.data import Augmentation, Batches, DataSet, ResidentBatches, Split, load_data
from flipguard.ensembles import CachedReference, NetworkReference, OwnInputs, ViewedReference
from flipguard.methods import BackwardCompatible, Elodi, FocalDistillation, NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, train_network
from flipguard.training.loop import Run
from flipguard.training.views import Answers, Shared
from flipguard.training.waves import in_waves
from flipguard.types import InputError

MODEL = ModelSpec("cnn", {"width": 4})
RECIPE = Recipe(epochs=3, batch_size=64, learning_rate=0.2)
SHIFT = Augmentation(crop_padding=2, flip=True)
SEEDS = Seeds.of(5)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    torch.set_num_threads(1)
    return load_data("digits")


def members(seeds: tuple[int, ...] = (11, 12)) -> NetworkReference:
    """Untrained, and sure of themselves: what they say depends on what they see."""
    networks = [MODEL.build(10, seed) for seed in seeds]
    for network in networks:
        network.head.weight.data *= 20
    return NetworkReference("ensemble", networks)


def trained(digits: DataSet, **changes: Any) -> nn.Module:
    recipe = replace(RECIPE, **changes.pop("recipe", {}))
    options = {"references": {"ensemble": members()}, "augmentation": SHIFT, **changes}
    return train_network(MODEL, digits, options.pop("method", Elodi()), recipe, seeds=SEEDS, **options)


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Up to rounding: a reference is asked of other samples beside each."""
    for (name, value), found in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, found, rtol=1e-3, atol=1e-4, msg=name)


def differ(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return any(bool((a - b).abs().max() > 1e-2) for a, b in pairs)


def test_as_many_views_as_epochs_are_the_training_without(digits: DataSet) -> None:
    plain = trained(digits)
    assert_same(trained(digits, recipe={"views": 3}), plain)
    assert_same(trained(digits, recipe={"views": 8}), plain)
    assert differ(trained(digits, recipe={"views": 1}), plain)


def test_without_augmentation_there_is_one_view_and_nothing_changes(digits: DataSet) -> None:
    plain = trained(digits, augmentation=None)
    assert_same(trained(digits, augmentation=None, recipe={"views": 5}), plain)
    begun = begin_network(
        MODEL, digits, Elodi(), replace(RECIPE, views=5), seeds=SEEDS, references={"ensemble": members()}
    )
    kept = begun.references["ensemble"]
    assert isinstance(kept, ViewedReference)
    assert kept.logits.shape == (2, len(digits.train), 10)


def test_who_is_held_to_nothing_knows_no_views(digits: DataSet) -> None:
    plain, asked = (trained(digits, method=NoTreatment(), references={}, recipe={"views": views}) for views in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), asked.parameters(), strict=True))


def test_a_reference_says_of_each_batch_what_its_networks_say_of_it(digits: DataSet) -> None:
    """In every epoch, in the loop's batches and in those that live on the device; the second view is another."""
    networks = members()
    begun = begin_network(
        MODEL,
        digits,
        Elodi(),
        replace(RECIPE, epochs=5, views=2),
        seeds=SEEDS,
        references={"ensemble": networks},
        augmentation=SHIFT,
    )
    kept = begun.references["ensemble"]
    assert begun.job.resident is not None
    resident = begun.job.resident()
    for epoch in range(5):
        batch = list(begun.job.batches(epoch, 0))[1]
        resident.seek(epoch, 1)
        current = resident.current()
        assert torch.equal(current.index, batch.index)
        torch.testing.assert_close(current.x, batch.x)
        for seen in (batch, current):
            torch.testing.assert_close(kept(seen).logits, networks(seen).logits, rtol=1e-4, atol=1e-5)
    whole = [replace(begun.job.batches(epoch, 0), order_seed=None, drop_last=False) for epoch in range(5)]
    views = [torch.cat([batch.x for batch in batches]) for batches in whole]
    assert torch.equal(views[0], views[2])
    assert torch.equal(views[1], views[3])
    assert not torch.equal(views[0], views[1])


def test_what_one_run_asks_of_a_network_another_need_not(digits: DataSet) -> None:
    """Overlapping ensembles, the same draws: each network is asked once, and every run is the one that asks itself."""
    asked: list[int] = []
    students = [(11, 12), (12, 13), (11, 12, 13)]
    answers = Answers((seed, "draws") for seeds in students for seed in seeds)

    def begin(seeds: tuple[int, ...], shared: Shared | None) -> Any:
        reference = members(seeds)
        for seed, network in zip(seeds, reference.networks, strict=True):
            network.register_forward_pre_hook(lambda *_, seed=seed: asked.append(seed))
        recipe = replace(RECIPE, views=2)
        held_to = {"ensemble": reference}
        options = {"references": held_to, "augmentation": SHIFT, "shared": shared}
        return begin_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, **options)

    steps = 2 * math.ceil(len(digits.train) / RECIPE.batch_size)
    new = [{11, 12}, {13}, set()]
    for seeds, first in zip(students, new, strict=True):
        asked.clear()
        run = begin(seeds, Shared(answers, {"ensemble": [(seed, "draws") for seed in seeds]}))
        assert {seed: asked.count(seed) for seed in {*asked}} == dict.fromkeys(first, steps)
        alone = begin(seeds, None)
        assert torch.equal(run.references["ensemble"].logits, alone.references["ensemble"].logits)
    assert not any((seed, "draws") in answers for seed in (11, 12, 13))


def test_an_answer_is_kept_alone_and_goes_with_its_last_reader() -> None:
    """Of networks that were asked together the one that is wanted again; a network may stand in a reference twice."""
    answers = Answers(["first", "second", "second"])
    said = torch.arange(24.0).reshape(2, 4, 3)
    for key, rows in zip(("first", "second"), said, strict=True):
        answers.put(key, rows)
    assert "first" not in answers
    found = answers.take("second", torch.device("cpu"))
    assert torch.equal(found, said[1])
    assert found.untyped_storage().nbytes() == said[1].nbytes
    assert "second" not in answers


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_network_that_is_named_twice_is_asked_for_once(digits: DataSet, side_by_side: bool) -> None:
    answers, keys = Answers(["a", "b", "a", "b", "a", "b"]), {"ensemble": ["a", "b", "a"]}
    begun = []
    for others in (2, 1, 0):
        reference = members((11, 12, 11))
        held_to, recipe = {"ensemble": reference}, replace(RECIPE, views=2)
        options = {"references": held_to, "augmentation": SHIFT, "shared": Shared(answers, keys)}
        run = begin_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, **options)
        begun += [run] if side_by_side else []
        logits = run.references["ensemble"].logits
        assert torch.equal(logits[0], logits[2])
        assert not torch.equal(logits[0], logits[1])
        assert [key in answers for key in ("a", "b")] == [others > 0] * 2
        del run, logits
        gc.collect()


def test_students_of_one_ensemble_that_train_side_by_side_hold_its_answers_once(digits: DataSet) -> None:
    """And who comes when they have gone finds what each network said, until nobody else wants it."""
    answers, keys = Answers(["a", "b"] * 4), {"ensemble": ["a", "b"]}

    def begin() -> Any:
        options = {"references": {"ensemble": members((11, 12))}, "augmentation": SHIFT}
        recipe = replace(RECIPE, views=2)
        return begin_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, shared=Shared(answers, keys), **options)

    def logits(run: Any) -> Any:
        return run.references["ensemble"].logits

    first, second = begin(), begin()
    assert logits(first).data_ptr() == logits(second).data_ptr()
    said, held = logits(first).clone(), weakref.ref(logits(first))
    del first, second
    gc.collect()
    assert held() is None
    third = begin()
    assert torch.equal(logits(third), said)
    fourth = begin()
    assert logits(fourth).data_ptr() == logits(third).data_ptr()
    assert "a" not in answers
    assert "b" not in answers


def test_each_student_has_the_answers_of_its_own_networks(digits: DataSet) -> None:
    """Beside another that is held to as many: of the same ones in another order, or to others."""
    seeds = {"a": 11, "b": 12, "c": 13}
    ensembles = (["a", "b"], ["b", "a"], ["a", "c"])
    answers, recipe = Answers("".join("".join(keys) for keys in ensembles)), replace(RECIPE, views=2)

    def begin(keys: list[str], shared: Shared | None) -> Any:
        options = {"references": {"ensemble": members(tuple(seeds[key] for key in keys))}, "augmentation": SHIFT}
        return begin_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, shared=shared, **options)

    begun = [begin(keys, Shared(answers, {"ensemble": keys})) for keys in ensembles]
    for keys, run in zip(ensembles, begun, strict=True):
        assert torch.equal(run.references["ensemble"].logits, begin(keys, None).references["ensemble"].logits)


def test_answers_go_with_the_wave_that_they_were_for(digits: DataSet) -> None:
    """What a card is full of is free when the next networks begin."""
    seen: list[weakref.ref[Any]] = []
    recipe = replace(RECIPE, views=1, epochs=1)

    def begin(seed: int) -> Run:
        gc.collect()
        assert [logits() for logits in seen] == [None] * len(seen)
        options = {"references": {"ensemble": members((seed,))}, "augmentation": SHIFT}
        shared = Shared(Answers([seed]), {"ensemble": [seed]})
        run = begin_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, shared=shared, **options)
        seen.append(weakref.ref(run.references["ensemble"].logits))
        return run

    assert [len(wave) for wave, _ in in_waves([11, 12, 13], begin, "cpu")] == [1, 1, 1]
    assert len(seen) == 3


def test_it_goes_on_after_a_kill(digits: DataSet, tmp_path: Path) -> None:
    whole = trained(digits, recipe={"views": 2, "epochs": 4})

    def begin(views: int = 2) -> Any:
        return begin_network(
            MODEL,
            digits,
            Elodi(),
            replace(RECIPE, epochs=4, views=views),
            seeds=SEEDS,
            references={"ensemble": members()},
            augmentation=SHIFT,
            checkpoint=tmp_path / "state.safetensors",
            checkpoint_every=3,
        )

    for done, _ in enumerate(begin().updates()):
        if done == 30:
            break
    again = begin()
    assert again.resume() > (0, 0)
    for _ in again.updates():
        pass
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.released().parameters(), strict=True))
    with pytest.raises(InputError, match="views"):
        begin(views=3).resume()


def test_a_reference_that_is_no_network_stays_as_it_is(digits: DataSet) -> None:
    cached = CachedReference("old", torch.randn(1, len(digits.train), 10, generator=torch.Generator().manual_seed(3)))
    one, other = (
        trained(digits, method=FocalDistillation(), references={"old": cached}, recipe={"views": views})
        for views in (0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_bad_input(digits: DataSet) -> None:
    with pytest.raises(InputError, match="views must be at least 1, or 0"):
        Recipe(views=-1)
    with pytest.raises(InputError, match="not stored logits"):
        trained(digits, method=BackwardCompatible(), references={"old": members((3,))}, recipe={"views": 2})
    loader = DataLoader(TensorDataset(digits.train.x.float(), digits.train.y), batch_size=64)
    with pytest.raises(InputError, match="views needs to know what a loader shows next"):
        flipguard.fit(MODEL.build(10, 1), loader, method="kd", old=MODEL.build(10, 2), recipe=Recipe(views=2))


def test_views_come_round_in_batches(digits: DataSet) -> None:
    like = Batches(digits.train, 64, order_seed=3, augmentation=SHIFT, drop_last=True, epochs=7, views=3)
    plain = replace(like, views=0)
    for epoch, view in ((0, 0), (4, 1), (6, 0)):
        index = next(replace(like, epoch=epoch).indices())
        expected = replace(plain, epoch=view).prepare(digits.train.x[index], index)
        assert torch.equal(next(iter(replace(like, epoch=epoch))).x, expected)
        resident = ResidentBatches(like)
        resident.seek(epoch, 0)
        assert torch.equal(resident.current().x, expected)
        # Where an epoch's images do not fit twice, a captured step cuts them itself, by the epoch on the device.
        assert torch.equal(like.prepare(digits.train.x[index], index, epoch=torch.tensor(epoch)), expected)


def test_parts_of_image_files_come_round_too(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for part in ("train", "test"):
        for number in range(3):
            home = tmp_path / part / "a"
            home.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
            image.fromarray(pixels).save(home / f"{number}.png")
    files = load_data({"name": "image-folder", "folder": str(tmp_path), "size": 8, "resize": 8}).train
    first, second, third = (
        next(iter(Batches(files, 3, augmentation=SHIFT, epoch=epoch, epochs=3, views=2))).x for epoch in range(3)
    )
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


def test_texts_have_one_view_and_a_reference_its_own_inputs_and_classes() -> None:
    """In bf16 and with batches in parts, every part of every batch."""
    generator = torch.Generator().manual_seed(2)
    inputs = [
        {
            "input_ids": torch.randint(0, 30, (53, 6), generator=generator),
            "attention_mask": torch.ones(53, 6, dtype=torch.int64),
        }
        for _ in range(2)
    ]
    split = Split(inputs[0], torch.arange(53) % 5, np.arange(53))
    data = DataSet("texts", split, split, tuple("abcde"), "text")
    text = ModelSpec("text_transformer", {"vocabulary": 30, "length": 6, "width": 8, "layers": 1, "heads": 2})
    reference = OwnInputs("old", [text.build(3, 4), text.build(3, 5)], [None, inputs[1]], classes=(4, 0, 2))
    begun = begin_network(
        text,
        data,
        FocalDistillation(),
        Recipe(epochs=3, batch_size=10, accumulate=2, precision="bf16", views=2),
        seeds=SEEDS,
        references={"old": reference},
        augmentation=SHIFT,
    )
    kept = begun.references["old"]
    assert isinstance(kept, ViewedReference)
    assert kept.logits.shape == (2, 53, 3)
    assert kept.classes == (4, 0, 2)
    for epoch in range(3):
        for batch in begun.job.batches(epoch, 0):
            with torch.autocast("cpu", torch.bfloat16):
                expected = reference(batch).logits
            torch.testing.assert_close(kept(batch).logits, expected.float(), rtol=2e-2, atol=1e-3)
    for _ in begun.updates():
        pass
