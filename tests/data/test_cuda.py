"""The same draws, orders and batches on a GPU as on the CPU, also inside a captured step."""

from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Augmentation, Batches, Split, measure_normalisation, normalise, random_bits, random_order

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

N = 1009
PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8))


def test_bits_and_orders_are_identical() -> None:
    index = torch.arange(100_003)
    for seed, counter in ((0, 0), (-5, 7), (2**62, 10**6)):
        on_device = random_bits(seed, torch.tensor(counter, device="cuda"), index.cuda())
        assert torch.equal(on_device.cpu(), random_bits(seed, counter, index))
        assert torch.equal(random_order(seed, counter, N, device="cuda").cpu(), random_order(seed, counter, N))


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_batches_are_identical(mode: Any) -> None:
    split = Split(PIXELS, torch.arange(N) % 7, np.arange(N))
    options: dict[str, Any] = {"order_seed": 1, "augment_seed": 2, "epoch": 3, "epochs": 5}
    options |= {"augmentation": Augmentation(padding_mode=mode), "normalisation": measure_normalisation(PIXELS)}
    for a, b in zip(Batches(split, 97, **options), Batches(split, 97, **options, device="cuda"), strict=True):
        assert isinstance(b.x, torch.Tensor)
        assert b.x.device.type == "cuda"
        assert torch.equal(a.index, b.index.cpu())
        assert torch.equal(a.y, b.y.cpu())
        torch.testing.assert_close(a.x, b.x.cpu(), rtol=0, atol=1e-6)


def test_a_captured_step_replays_with_another_epoch() -> None:
    augment, normalisation = Augmentation(), measure_normalisation(PIXELS)
    x, index = PIXELS.cuda(), torch.arange(N, device="cuda")
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")

    def step() -> torch.Tensor:
        return normalise(augment(x, seed=7, epoch=epoch, index=index), normalisation, channels_last=True)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for number in (0, 5):
        epoch.fill_(number)
        graph.replay()
        expected = normalise(augment(PIXELS, seed=7, epoch=number, index=index.cpu()), normalisation)
        torch.testing.assert_close(out.cpu(), expected, rtol=0, atol=1e-6)
