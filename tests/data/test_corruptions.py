"""Every corruption crossed with what holds for all of them, and some against their definitions."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from flipguard.data import CORRUPTIONS, DataSet, Split, corrupted, load_data
from flipguard.data.corruptions.blurs import smeared, zoomed
from flipguard.data.corruptions.draws import Draws
from flipguard.data.corruptions.weather import plasma
from flipguard.types import InputError

N = 7

every_kind = pytest.mark.parametrize("kind", CORRUPTIONS)


def images(n: int = N, side: tuple[int, int] = (32, 32), channels: int = 3, seed: int = 0) -> torch.Tensor:
    """Smooth colours with detail and an edge in them, as photographs have."""
    rng = np.random.default_rng(seed)
    smooth = np.zeros((n, channels, *side))
    for sigma in (1, 3):
        layer = ndimage.gaussian_filter(rng.random(smooth.shape), (0, 0, sigma, sigma))
        smooth += (layer - layer.min()) / (layer.max() - layer.min()) / 2
    for image in smooth:
        image[:, rng.integers(8, side[0] - 6) :, rng.integers(8, side[1] - 6) :] *= 0.4
    return torch.from_numpy(np.rint(smooth * 255).astype(np.uint8))


def a_split(n: int = N, **options: object) -> Split:
    x = images(n, **options)  # type: ignore[arg-type]
    return Split(x, torch.arange(n) % 3, np.array([f"img_{i}" for i in range(n)]), {"country": np.full(n, "de")})


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first.float() - second.float()).abs().mean())


def lost(first: torch.Tensor, second: torch.Tensor) -> float:
    """The share of the image that no change of brightness and contrast brings back."""
    pairs = zip(first.flatten(1).numpy(), second.flatten(1).numpy(), strict=True)
    return float(np.mean([1 - np.corrcoef(a, b)[0, 1] ** 2 for a, b in pairs]))


def test_there_are_fifteen() -> None:
    assert len(CORRUPTIONS) == 15


@every_kind
def test_images_in_images_out(kind: str) -> None:
    split = a_split()
    before = split.x.clone()
    for severity in range(1, 6):
        done = corrupted(split, kind, severity)
        assert done.x.dtype == torch.uint8
        assert done.x.shape == split.x.shape
        assert 0.2 < distance(done.x, split.x) < 100
        assert done.ids.tolist() == split.ids.tolist()
        assert torch.equal(done.y, split.y)
        assert set(done.slices) == {"country", "corruption", "severity"}
        assert set(done.slices["corruption"]) == {kind}
        assert set(done.slices["severity"]) == {severity}
    assert torch.equal(split.x, before)


# Elastic: CIFAR-C moves the whole image less and less as it bends it more. Frost: it darkens the image under the ice.
HARM: dict[str, Callable[[torch.Tensor, torch.Tensor], float]] = {"frost": lost}


@every_kind
def test_harm_grows_with_severity(kind: str) -> None:
    if kind == "elastic_transform":
        ramp = torch.arange(0, 256, 8, dtype=torch.uint8)
        split = Split(torch.stack([ramp.expand(3, 32, 32), ramp[:, None].expand(3, 32, 32)]), torch.zeros(2), [1, 2])  # type: ignore[arg-type]
        found = [bend(corrupted(split, kind, severity).x) for severity in range(1, 6)]
    else:
        split = a_split(31)
        found = [HARM.get(kind, distance)(corrupted(split, kind, severity).x, split.x) for severity in range(1, 6)]
    assert found[4] > 1.2 * found[0]
    if kind != "glass_blur":
        # CIFAR-C's third glass is of one round and a wider blur, its fourth of two rounds and a narrow one.
        assert all(later >= 0.98 * sooner for sooner, later in pairwise(found))


def bend(ramps: torch.Tensor) -> float:
    """How far straight ramps are from a plane, in the middle of the image."""
    middle = ramps[:, 0, 8:24, 8:24].double().reshape(len(ramps), -1).T
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    plane = torch.stack([rows.reshape(-1), columns.reshape(-1), torch.ones(256)], dim=1).double()
    return float((middle - plane @ torch.linalg.lstsq(plane, middle).solution).abs().mean())


@every_kind
def test_a_sample_is_corrupted_alike_in_every_subset_and_order(kind: str) -> None:
    split = a_split()
    whole = corrupted(split, kind, 3)
    rows = [5, 2, 3]
    part = corrupted(split.select(rows), kind, 3)
    assert torch.equal(part.x, whole.x[rows])
    assert torch.equal(corrupted(split, kind, 3).x, whole.x)


RANDOM = [k for k in CORRUPTIONS if k not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate")]


@pytest.mark.parametrize("kind", [k for k in RANDOM if k != "jpeg_compression"])
def test_seeds_and_samples_differ(kind: str) -> None:
    split = a_split()
    assert not torch.equal(corrupted(split, kind, 3).x, corrupted(split, kind, 3, seed=1).x)
    same = Split(split.x[:1].expand(2, -1, -1, -1), split.y[:2], np.array(["a", "b"]))
    done = corrupted(same, kind, 3)
    assert not torch.equal(done.x[0], done.x[1])


@every_kind
@pytest.mark.parametrize(("side", "channels"), [((32, 32), 1), ((37, 53), 3), ((16, 16), 1)])
def test_other_sizes_and_grey(kind: str, side: tuple[int, int], channels: int) -> None:
    split = a_split(3, side=side, channels=channels)
    assert distance(corrupted(split, kind, 1).x, split.x) > 0
    assert corrupted(split, kind, 5).x.shape == split.x.shape


def test_more_images_than_a_block() -> None:
    split = a_split(521, side=(16, 16), channels=1)
    last = corrupted(split.select(list(range(515, 521))), "gaussian_noise", 2)
    assert torch.equal(corrupted(split, "gaussian_noise", 2).x[515:], last.x)


def test_a_data_set_keeps_its_training_samples() -> None:
    part = a_split()
    data = DataSet("toy", part, part, ("a", "b", "c"), "image")
    done = corrupted(data, "fog", 2)
    assert torch.equal(done.train.x, part.x)
    assert torch.equal(done.test.x, corrupted(part, "fog", 2).x)
    assert done.fingerprint() == data.fingerprint()


def flat(value: int, n: int = 61) -> Split:
    return Split(torch.full((n, 3, 32, 32), value, dtype=torch.uint8), torch.zeros(n), np.arange(n))


def test_noise_has_the_moments_it_is_defined_by() -> None:
    gaussian = corrupted(flat(128), "gaussian_noise", 3).x.double() / 255
    assert float(gaussian.mean()) == pytest.approx(128 / 255, abs=1e-3)
    assert float(gaussian.std()) == pytest.approx(0.08, rel=0.01)
    photons = corrupted(flat(102), "shot_noise", 5).x.double().numpy().ravel() / 255 * 50
    assert photons.mean() == pytest.approx(20, rel=5e-3)
    assert photons.var() == pytest.approx(20, rel=0.02)
    counts = np.bincount(np.rint(photons).astype(int), minlength=51)[5:40]
    expected = stats.poisson.pmf(np.arange(5, 40), 20) * len(photons)
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected.max())
    impulse = corrupted(flat(128), "impulse_noise", 5).x
    assert float((impulse == 0).double().mean()) == pytest.approx(0.035, rel=0.05)
    assert float((impulse == 255).double().mean()) == pytest.approx(0.035, rel=0.05)
    assert bool((corrupted(flat(0), "shot_noise", 5).x == 0).all())


def test_brightness_moves_the_value_and_nothing_else() -> None:
    from colorsys import rgb_to_hsv

    split = a_split(1)
    done = corrupted(split, "brightness", 2)
    for row, column in ((3, 5), (17, 23), (31, 0)):
        before, after = (rgb_to_hsv(*(v / 255 for v in x[0, :, row, column].tolist())) for x in (split.x, done.x))
        assert after[2] == pytest.approx(min(before[2] + 0.1, 1), abs=0.003)
        assert after[1] == pytest.approx(before[1], abs=0.02)
    black = corrupted(flat(0, 1), "brightness", 5).x
    assert set(black.unique().tolist()) <= {76, 77}


def test_contrast_keeps_the_mean() -> None:
    split = a_split()
    done = corrupted(split, "contrast", 4)
    assert torch.allclose(done.x.float().mean((2, 3)), split.x.float().mean((2, 3)), atol=0.5)
    ratio = done.x.float().std((2, 3)) / split.x.float().std((2, 3))
    assert torch.allclose(ratio, torch.full_like(ratio, 0.3), atol=0.02)


@pytest.mark.parametrize("factor", [1.0, 1.04, 1.25, 2.25])
def test_zoom_as_scipy_does_it(factor: float) -> None:
    x = images().permute(0, 2, 3, 1).numpy().astype(np.float32) / 255
    cut = int(np.ceil(32 / factor))
    top = (32 - cut) // 2
    large = ndimage.zoom(x[:, top : top + cut, top : top + cut], (1, factor, factor, 1), order=1)
    top = (large.shape[1] - 32) // 2
    np.testing.assert_allclose(zoomed(x, factor), large[:, top : top + 32, top : top + 32], atol=1e-6)


def test_smears_point_where_they_should() -> None:
    point = np.zeros((3, 33, 33, 1), np.float32)
    point[:, 16, 16] = 1
    done = smeared(point, 6, 2.0, np.array([0.0, 90.0, 45.0]))[..., 0]
    assert done.sum(axis=(1, 2)) == pytest.approx(np.ones(3), abs=1e-5)
    assert done[0, 16].sum() == pytest.approx(1, abs=1e-5)
    assert done[1, :, 16].sum() == pytest.approx(1, abs=1e-5)
    assert np.trace(done[2]) == pytest.approx(1, abs=1e-5)
    assert (np.diff(done[0, 16, :17]) >= 0).all()


def test_clouds_are_rougher_with_less_decay() -> None:
    rough, smooth = (plasma(Draws(0, 0, torch.arange(N)), 32, 32, decay) for decay in (1.5, 3.0))
    assert rough.shape == (N, 32, 32)
    assert rough.min() == smooth.min() == 0
    assert rough.max() == smooth.max() == 1
    assert np.abs(np.diff(rough, axis=1)).mean() > 1.5 * np.abs(np.diff(smooth, axis=1)).mean()


def test_refusals() -> None:
    split = a_split()
    with pytest.raises(InputError, match=r"there is no corruption 'rain'\. Corruptions: gaussian_noise"):
        corrupted(split, "rain", 1)
    for severity in (0, 6):
        with pytest.raises(InputError, match=f"runs from 1 to 5, not {severity}"):
            corrupted(split, "fog", severity)
    with pytest.raises(InputError, match=r"at least 16 by 16, got torch.uint8 \(539, 1, 8, 8\)"):
        corrupted(load_data("digits"), "fog", 1)
    with pytest.raises(InputError, match="uint8"):
        corrupted(Split(torch.zeros(2, 11), torch.zeros(2), np.arange(2)), "fog", 1)
