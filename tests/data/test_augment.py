"""Crop, flip and normalisation against naive loops over single images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flipguard.data import Augmentation, measure_normalisation, normalise
from flipguard.types import InputError, Normalisation

B, C, H, W = 13, 3, 11, 7
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (B, C, H, W), dtype=np.uint8))
INDEX = torch.arange(100, 100 + B)


@pytest.mark.parametrize("mode", ["zero", "reflect"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_equals_padding_cutting_and_mirroring_one_by_one(mode: str, flip: bool, padding: int) -> None:
    augment = Augmentation(crop_padding=padding, flip=flip, padding_mode=mode)  # type: ignore[arg-type]
    found = augment(IMAGES, seed=7, epoch=2, index=INDEX)
    top, left, mirror = augment.choices(7, 2, INDEX)
    pad_mode = "reflect" if mode == "reflect" else "constant"
    for b in range(B):
        padded = F.pad(IMAGES[b : b + 1].float(), (padding,) * 4, mode=pad_mode)[0]
        window = padded[:, top[b] : top[b] + H, left[b] : left[b] + W]
        expected = window.flip(-1) if mirror[b] else window
        assert torch.equal(found[b].float(), expected)
    assert found.dtype == torch.uint8
    assert bool(mirror.any()) == flip


def test_the_same_choice_in_any_order_and_batch() -> None:
    augment = Augmentation(crop_padding=3)
    whole = augment(IMAGES, seed=7, epoch=0, index=INDEX)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(IMAGES[order], seed=7, epoch=0, index=INDEX[order]), whole[order])
    assert torch.equal(augment(IMAGES[5:6], seed=7, epoch=0, index=INDEX[5:6]), whole[5:6])
    assert torch.equal(augment(IMAGES, seed=7, epoch=torch.tensor(0), index=INDEX), whole)


@pytest.mark.parametrize(("seed", "epoch"), [(8, 0), (7, 1)])
def test_seed_and_epoch_change_the_choices(seed: int, epoch: int) -> None:
    augment, index = Augmentation(crop_padding=4), torch.arange(1009)
    first, second = augment.choices(7, 0, index), augment.choices(seed, epoch, index)
    for a, b, chance in zip(first, second, (1 / 9, 1 / 9, 1 / 2), strict=True):
        assert abs(float((a == b).float().mean()) - chance) < 0.07


def test_no_value_is_looked_at() -> None:
    # Tensors on the meta device have no values: whatever read one, or chose a shape by it, would raise.
    x, index, epoch = (value.to("meta") for value in (IMAGES, INDEX, torch.tensor(3)))
    augmented = Augmentation(crop_padding=2)(x, seed=7, epoch=epoch, index=index)
    found = normalise(augmented, Normalisation((0.5,) * 3, (0.5,) * 3), dtype=torch.bfloat16, channels_last=True)
    assert found.shape == (B, C, H, W)
    assert found.device.type == "meta"


def test_every_place_is_as_likely() -> None:
    n = 81 * 200
    top, left, mirror = Augmentation(crop_padding=4).choices(7, 0, torch.arange(n))
    counts = torch.bincount((top * 9 + left) * 2 + mirror.long(), minlength=162).double()
    expected = n / 162
    # The 1 - 1e-6 quantile of chi-square with 161 degrees of freedom is about 256.
    assert float(((counts - expected) ** 2 / expected).sum()) < 256


def test_normalise_equals_the_formula() -> None:
    normalisation = Normalisation((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    found = normalise(IMAGES, normalisation)
    for channel in range(C):
        mean, std = normalisation.mean[channel], normalisation.std[channel]
        expected = (IMAGES[:, channel].double() / 255 - mean) / std
        torch.testing.assert_close(found[:, channel].double(), expected, rtol=0, atol=1e-6)


def test_normalise_layout_and_type() -> None:
    found = normalise(IMAGES, None, dtype=torch.bfloat16, channels_last=True)
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.float(), IMAGES.float() / 255, rtol=2**-8, atol=0)


def test_features_are_not_divided_by_255() -> None:
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert normalise(x, measure_normalisation(x)).tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert normalise(x, None).tolist() == x.tolist()


def test_measured_normalisation_gives_mean_zero_and_deviation_one() -> None:
    x = normalise(IMAGES, measure_normalisation(IMAGES)).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(C, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(C, dtype=torch.float64), rtol=1e-6, atol=0)


def test_constants_first_made_in_inference_mode_can_be_differentiated_later() -> None:
    normalisation = Normalisation((0.123,), (0.321,))
    with torch.inference_mode():
        normalise(torch.zeros(1, 1, 2, 2), normalisation)
    x = torch.zeros(1, 1, 2, 2, requires_grad=True)
    normalise(x, normalisation).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 0.321))


def test_errors() -> None:
    with pytest.raises(InputError, match="crop_padding must be 0 or more, not -1"):
        Augmentation(crop_padding=-1)
    with pytest.raises(InputError, match="'zero' or 'reflect', not 'edge'"):
        Augmentation(padding_mode="edge")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot reflect 7 pixels of a 11 × 7 image"):
        Augmentation(crop_padding=7, padding_mode="reflect")(IMAGES, seed=0, epoch=0, index=INDEX)
    with pytest.raises(InputError, match="normalisation has 2 channels and the input 3"):
        normalise(IMAGES, Normalisation((0.5, 0.5), (0.5, 0.5)))


def test_the_measured_scale_does_not_depend_on_threads() -> None:
    """A run that is begun with one thread may go on with two: its data must be the same to the last digit."""
    x = torch.rand(40_000, 3, 8, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(measure_normalisation(x))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
