"""Our own kernels against torch's: on a GPU, or without one by Triton's interpreter (`make kernels`)."""

import copy
import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: make kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("neither a GPU nor Triton's interpreter: make kernels", allow_module_level=True)

from flipguard.models import build_model  # noqa: E402
from flipguard.models.resnet import Residual  # noqa: E402
from flipguard.training.forwards import with_fused_norms  # noqa: E402
from flipguard.training.grouped import plainly_traced  # noqa: E402
from flipguard.training.normalisation import FusedNorm, fresh_counts, norm_add_relu  # noqa: E402
from flipguard.training.paired import _Pairing, paired  # noqa: E402


@pytest.mark.parametrize(("rows", "channels", "side"), [(5, 7, 3), (13, 32, 9), (33, 200, 5)])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_fused_norms_are_torchs(rows: int, channels: int, side: int, adds: bool, relu: bool) -> None:
    torch.manual_seed(0)
    x, z, dy = (
        torch.randn(rows, channels, side, side, device=DEVICE).contiguous(memory_format=torch.channels_last)
        for _ in range(3)
    )
    x = x * 2 + 30
    mine, theirs = (torch.nn.BatchNorm2d(channels).to(DEVICE) for _ in range(2))
    for norm in (mine, theirs):
        norm.weight.data.copy_(torch.linspace(-1, 2, channels))
        norm.bias.data.copy_(torch.linspace(1, -1, channels))
        norm.running_mean.fill_(20.0)  # type: ignore[union-attr]
    a, b, c, d = (value.clone().requires_grad_() for value in (x, z, x, z))
    got = norm_add_relu(a, mine, z=b if adds else None, relu=relu)
    wanted = theirs(c) + d if adds else theirs(c)
    wanted = torch.relu(wanted) if relu else wanted
    got.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.grad, c.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mine.bias.grad, theirs.bias.grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mine.running_mean, theirs.running_mean)
    torch.testing.assert_close(mine.running_var, theirs.running_var, rtol=1e-4, atol=1e-5)
    assert mine.num_batches_tracked == 1
    if adds:
        torch.testing.assert_close(b.grad, d.grad)


def test_counts_are_ready_for_the_next_call() -> None:
    """The last program of each column puts them back, forward and backward."""
    norm = torch.nn.BatchNorm2d(200).to(DEVICE)
    counts = fresh_counts(norm)
    assert counts.shape == (2, 4)
    x = torch.randn(33, 200, 5, 5, device=DEVICE, requires_grad=True)
    first = norm_add_relu(x, norm, counts=counts)
    first.sum().backward()
    assert not counts.any()
    torch.testing.assert_close(norm_add_relu(x, norm, counts=counts), first)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("spans", "asked"),
    [
        ([(0, 40), (0, 40)], (0, 1)),
        ([(0, 40), (0, 40)], (0,)),
        ([(0, 40), (0, 40)], (1,)),
        ([(0, 40)] * 4, (0, 1, 2, 3)),
        ([(0, 20), (20, 20), (0, 20), (20, 20)], (0, 1, 2, 3)),
        ([(0, 40), (20, 20), (0, 20)], (1, 2)),
        ([(0, 40), (20, 20)], (1,)),
    ],
)
def test_readers_gradients_are_added(
    adds: bool, relu: bool, spans: list[tuple[int, int]], asked: tuple[int, ...]
) -> None:
    """Of all channels or of some, and where not every reader is asked for one."""
    torch.manual_seed(0)
    x, z = (torch.randn(9, 40, 4, 4, device=DEVICE) for _ in range(2))
    weights = [torch.randn(9, number, 4, 4, device=DEVICE) for _, number in spans]
    mine, theirs = (torch.nn.BatchNorm2d(40).to(DEVICE) for _ in range(2))
    a, b, c, d = (value.clone().requires_grad_() for value in (x, z, x, z))
    said = norm_add_relu(a, mine, z=b if adds else None, relu=relu, spans=spans)
    wanted = theirs(c) + d if adds else theirs(c)
    wanted = torch.relu(wanted) if relu else wanted
    right = [wanted.narrow(1, *span) for span in spans]
    for each, part in zip(said, right, strict=True):
        torch.testing.assert_close(each, part, rtol=1e-4, atol=1e-4)
    for parts in (said, right):
        torch.stack([(parts[place] * weights[place]).sum() for place in asked]).sum().backward()
    pairs = [(a.grad, c.grad), (mine.weight.grad, theirs.weight.grad), (mine.bias.grad, theirs.bias.grad)]
    for got, exact in pairs + ([(b.grad, d.grad)] if adds else []):
        torch.testing.assert_close(got, exact, rtol=1e-3, atol=1e-3)


def gradients(network: torch.nn.Module, said: torch.Tensor) -> torch.Tensor:
    """All of them in one vector."""
    found = torch.autograd.grad(said.square().mean(), list(network.parameters()))
    return torch.cat([each.flatten() for each in found])


def off(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["resnet18", "resnet20"])
def test_a_residual_network_of_fused_norms_says_and_learns_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block's input has two readers, the convolution and the shortcut."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    network = build_model(name, classes=10, width=8).to(DEVICE, memory_format=torch.channels_last)
    fused = with_fused_norms(network)
    norms = [module for module in fused.modules() if isinstance(module, FusedNorm)]
    assert (
        sum(len(norm.spans) == 2 for norm in norms)
        == sum(isinstance(module, Residual) for module in network.modules())
        > 0
    )
    x = torch.randn(8, 3, 32, 32, device=DEVICE)
    exact = copy.deepcopy(network).double()
    state = {key: value.clone() for key, value in network.state_dict().items()}
    found = [gradients(network, network(x))]
    network.load_state_dict(state)
    found.append(gradients(network, fused(x)))
    wanted = gradients(exact, exact(x.double()))
    plain, mine = (off(each, wanted) for each in found)
    assert mine <= 3 * plain + 1e-6


def test_norms_of_a_pair_give_each_network_its_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the ways part: one looks at both networks' channels, and each network's two readers have its own."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    networks = [build_model("resnet18", classes=10, width=32).to(DEVICE) for _ in range(2)]
    x = [torch.randn(8, 3, 32, 32, device=DEVICE) for _ in networks]
    exact = [copy.deepcopy(network).double() for network in networks]
    wanted = torch.cat([gradients(network, network(own.double())) for network, own in zip(exact, x, strict=True)])
    alone = [copy.deepcopy(network) for network in networks]
    plain = torch.cat([gradients(network, network(own)) for network, own in zip(alone, x, strict=True)])
    pairing = _Pairing(*(plainly_traced(network) for network in alone), None)
    norms = [module for module in with_fused_norms(pairing.made()).modules() if isinstance(module, FusedNorm)]
    halves = [sorted(norm.spans) for norm in norms if len(norm.spans) > 2]
    assert halves == [[(0, 64), (0, 64), (0, 128), (64, 64), (64, 64)]]
    joined = paired(networks)
    joined.call(x).square().mean((1, 2)).sum().backward()
    joined.hand_out()
    found = torch.cat([own.grad.flatten() for network in networks for own in network.parameters()])  # type: ignore[union-attr]
    assert off(found, wanted) <= 3 * off(plain, wanted) + 1e-6
