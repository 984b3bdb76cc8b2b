"""Batches: separate streams for order and augmentation, resume, shards."""

from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Augmentation, Batches, Split, measure_normalisation
from flipguard.types import Batch, InputError

N, B = 103, 17
PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8))
SPLIT = Split(PIXELS, torch.arange(N) % 7, np.arange(N) + 1000)
OPTIONS: dict[str, Any] = {
    "order_seed": 1,
    "augment_seed": 2,
    "epoch": 3,
    "epochs": 5,
    "augmentation": Augmentation(crop_padding=2),
    "normalisation": measure_normalisation(PIXELS),
}


def batches(**changes: Any) -> list[Batch]:
    return list(Batches(SPLIT, B, **(OPTIONS | changes)))


def by_row(found: list[Batch]) -> torch.Tensor:
    """The network inputs in the stored order."""
    index = torch.cat([batch.index for batch in found])
    return torch.cat([batch.x for batch in found])[index.argsort()]  # type: ignore[misc]


def rows(found: list[Batch]) -> list[int]:
    return torch.cat([batch.index for batch in found]).tolist()


def test_an_epoch_visits_every_row_once_with_its_label() -> None:
    found = batches()
    assert sorted(rows(found)) == list(range(N))
    assert [len(batch.y) for batch in found] == [17, 17, 17, 17, 17, 17, 1]
    for batch in found:
        assert torch.equal(batch.y, SPLIT.y[batch.index])


def test_drop_last_leaves_whole_batches() -> None:
    found = batches(drop_last=True)
    assert [len(batch.y) for batch in found] == [17] * 6
    assert rows(found) == rows(batches())[: 6 * 17]


def test_inputs_are_augmented_and_normalised_rows() -> None:
    batch = batches()[1]
    augmented = OPTIONS["augmentation"](PIXELS[batch.index], seed=2, epoch=3, index=batch.index)
    mean, std = (
        torch.tensor(value, dtype=torch.float64)[:, None, None]
        for value in (OPTIONS["normalisation"].mean, OPTIONS["normalisation"].std)
    )
    torch.testing.assert_close(batch.x.double(), (augmented / 255.0 - mean) / std, rtol=0, atol=2e-6)  # type: ignore[union-attr]
    assert batch.normalisation == OPTIONS["normalisation"]
    assert batch.seed == 2


@pytest.mark.parametrize("start_step", [0, 1, 4, 7])
def test_a_resumed_epoch_gives_the_same_batches(start_step: int) -> None:
    whole, rest = batches(), batches(start_step=start_step)
    assert len(rest) == len(Batches(SPLIT, B, **OPTIONS, start_step=start_step)) == 7 - start_step
    for a, b in zip(whole[start_step:], rest, strict=True):
        for name in ("x", "y", "index", "step", "progress"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_the_order_stream_moves_alone() -> None:
    first, second = batches(), batches(order_seed=9)
    assert rows(first) != rows(second)
    assert torch.equal(by_row(first), by_row(second))


def test_the_augmentation_stream_moves_alone() -> None:
    first, second = batches(), batches(augment_seed=9)
    assert rows(first) == rows(second)
    assert not torch.equal(by_row(first), by_row(second))


def test_augmentation_does_not_depend_on_the_batch_size() -> None:
    assert torch.equal(by_row(list(Batches(SPLIT, 29, **OPTIONS))), by_row(batches()))


def test_epochs_differ_in_order_and_augmentation() -> None:
    first, second = batches(epoch=0), batches(epoch=1)
    assert rows(first) != rows(second)
    assert not torch.equal(by_row(first), by_row(second))


def test_without_an_order_seed_rows_come_as_stored() -> None:
    assert rows(batches(order_seed=None)) == list(range(N))


def test_step_and_progress_run_through_training() -> None:
    found = [batch for epoch in range(5) for batch in batches(epoch=epoch)]
    assert [int(batch.step) for batch in found] == list(range(35))
    np.testing.assert_allclose([float(batch.progress) for batch in found], np.arange(35) / 35, rtol=1e-6)


@pytest.mark.parametrize("world", [2, 3])
def test_shards_of_a_batch_make_up_the_batch(world: int) -> None:
    shards = [batches(shard=(rank, world)) for rank in range(world)]
    for step, batch in enumerate(batches()):
        parts = [shard[step] for shard in shards]
        together = torch.cat([part.index for part in parts])
        assert sorted(together.tolist()) == sorted(batch.index.tolist())
        order = batch.index.argsort()
        assert torch.equal(torch.cat([part.x for part in parts])[together.argsort()], batch.x[order])  # type: ignore[misc,index]


def test_dicts_of_tensors_are_gathered_by_name() -> None:
    x = {"tokens": torch.arange(N * 5).reshape(N, 5), "mask": torch.ones(N, 5, dtype=torch.bool)}
    split = Split(x, SPLIT.y, SPLIT.ids)
    batch = next(iter(Batches(split, B, order_seed=1)))
    assert isinstance(batch.x, dict)
    assert torch.equal(batch.x["tokens"], x["tokens"][batch.index])
    assert batch.x["mask"].shape == (B, 5)


def test_bfloat16_and_channels_last() -> None:
    batch = batches(dtype=torch.bfloat16, channels_last=True)[0]
    assert batch.x.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert batch.x.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]


def test_errors() -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1, not 0"):
        Batches(SPLIT, 0)
    with pytest.raises(InputError, match="a batch of 104 is larger than the 103 samples"):
        Batches(SPLIT, 104, drop_last=True)
    with pytest.raises(InputError, match="start_step must lie in 0 … 7"):
        Batches(SPLIT, B, start_step=8)
    with pytest.raises(InputError, match=r"0 ≤ rank < world, not \(2, 2\)"):
        Batches(SPLIT, B, shard=(2, 2))
    with pytest.raises(InputError, match="encode them into tensors with encode_text"):
        Batches(Split(("a", "b"), torch.tensor([0, 1]), np.arange(2)), 1)
