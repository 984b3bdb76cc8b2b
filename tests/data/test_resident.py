"""Batches by counters against batches by iteration."""

from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Augmentation, Batches, ResidentBatches, Split, resident
from flipguard.types import InputError, Normalisation

N, B = 23, 5
PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (N, 3, 7, 11), dtype=np.uint8))
NORMALISATION = Normalisation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


def split(x: Any = PIXELS) -> Split:
    return Split(x, torch.arange(N) % 3, np.arange(N))


def options(**more: Any) -> dict[str, Any]:
    return {"order_seed": 3, "augment_seed": 4, "epochs": 7, "drop_last": True, **more}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augmentation", [None, Augmentation(crop_padding=2), Augmentation(padding_mode="reflect")])
@pytest.mark.parametrize("together", [True, False])
def test_they_are_the_same(augmentation: Any, channels_last: bool, together: bool) -> None:
    given = options(augmentation=augmentation, normalisation=NORMALISATION, channels_last=channels_last)
    found = ResidentBatches(Batches(split(), B, **given))
    if not together:
        found._shown = None
    for epoch, start in ((0, 0), (5, 1)):
        found.seek(epoch, start)
        for expected in Batches(split(), B, **given, epoch=epoch, start_step=start):
            batch = found.current()
            assert isinstance(batch.x, torch.Tensor)
            assert isinstance(expected.x, torch.Tensor)
            assert torch.equal(batch.x, expected.x)
            assert batch.x.stride() == expected.x.stride()
            for name in ("y", "index", "progress", "step"):
                assert torch.equal(getattr(batch, name), getattr(expected, name)), name
            found.advance()


def test_a_look_ahead_is_the_next_batch() -> None:
    found = ResidentBatches(Batches(split(), B, **options(augmentation=Augmentation(crop_padding=2))))
    found.seek(2, 1)
    ahead = found.current(ahead=1)
    found.advance()
    assert torch.equal(ahead.x, found.current().x)
    assert torch.equal(ahead.index, found.current().index)
    assert torch.equal(found.rows(2, 2), found.current().index)


def test_dicts_and_features_pass_through() -> None:
    x = {"ids": torch.arange(N * 2).reshape(N, 2), "mask": torch.ones(N, 2)}
    found = ResidentBatches(Batches(split(x), B, **options()))
    found.seek(0, 0)
    batch = found.current()
    assert isinstance(batch.x, dict)
    assert torch.equal(batch.x["ids"], x["ids"][batch.index])


def test_images_that_are_too_many_to_keep_twice_are_prepared_step_by_step() -> None:
    given = Batches(split(), B, **options(augmentation=Augmentation(crop_padding=2)))
    assert ResidentBatches(given)._shown is not None
    assert PIXELS.nbytes < resident.PREPARED_BYTES


@pytest.mark.parametrize("wrong", [{"drop_last": False}, {"shard": (0, 2)}])
def test_what_has_no_fixed_shape_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="whole and in one process"):
        ResidentBatches(Batches(split(), B, **options(**wrong)))
