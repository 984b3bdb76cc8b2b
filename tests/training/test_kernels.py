"""Our own kernels against torch's: on a GPU, or without one by Triton's interpreter (`make kernels`)."""

import copy
import os

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: make kernels")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("neither a GPU nor Triton's interpreter: make kernels", allow_module_level=True)

from flipguard.ensembles import BatchStudent, BranchedStudent  # noqa: E402
from flipguard.models import build_model  # noqa: E402
from flipguard.models.resnet import Residual  # noqa: E402
from flipguard.training.forwards import fused, with_fused_norms  # noqa: E402
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


def test_a_batch_ensemble_of_fused_norms_says_and_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers are called as whole ones, whoever's turn it is; statistics are those of all members' rows."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    student = BatchStudent(build_model("resnet10", classes=10, width=8), 3, std=0.3).to(DEVICE)
    (network,) = student.passes
    assert sum(isinstance(module, FusedNorm) for module in with_fused_norms(network).modules()) > 0
    exact, x = copy.deepcopy(student).double(), torch.randn(4, 3, 16, 16, device=DEVICE)
    state = {key: value.clone() for key, value in student.state_dict().items()}
    plain = gradients(student, student(x).logits)
    moved = {key: value.clone() for key, value in student.state_dict().items() if "running" in key}
    student.load_state_dict(state)
    with fused(network):
        mine = gradients(student, student(x).logits)
        norms = [value for key, value in student.state_dict().items() if "running" in key]
        # Whoever is asked alone, in evaluation, is asked as before.
        alone = student.eval().chosen(x, torch.tensor([1], device=DEVICE))
        student.train()
    wanted = gradients(exact, exact(x.double()).logits)
    assert off(mine, wanted) <= 3 * off(plain, wanted) + 1e-6
    for got, expected in zip(norms, moved.values(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone, student.eval().chosen(x, torch.tensor([1], device=DEVICE)))


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


@pytest.mark.parametrize("mean", [0.0, 100.0, 1000.0])
def test_a_mean_far_from_zero_costs_no_digits(mean: float) -> None:
    """At the first step, when the running mean knows nothing yet."""
    torch.manual_seed(0)
    x = torch.randn(16, 24, 6, 6, device=DEVICE) + mean
    norm = torch.nn.BatchNorm2d(24).to(DEVICE)
    got = norm_add_relu(x, norm, relu=False)
    exact = torch.nn.functional.batch_norm(x.double(), None, None, training=True)
    torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 2, 3)))


def test_half_precision() -> None:
    torch.manual_seed(0)
    x, z, dy = (torch.randn(8, 40, 4, 4, device=DEVICE) for _ in range(3))
    mine, theirs = (torch.nn.BatchNorm2d(40).to(DEVICE) for _ in range(2))
    a, b = (value.bfloat16().requires_grad_() for value in (x, z))
    c, d = (value.bfloat16().float().requires_grad_() for value in (x, z))
    got, wanted = norm_add_relu(a, mine, z=b), torch.relu(theirs(c) + d)
    assert got.dtype == torch.bfloat16
    got.backward(dy.bfloat16())
    wanted.backward(dy.bfloat16().float())
    for one, other in ((got, wanted), (a.grad, c.grad), (b.grad, d.grad)):
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)  # type: ignore[union-attr]
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=1e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_not_hidden(bad: float) -> None:
    """ReLU must not make a zero of it: the loss has to show it."""
    x = torch.randn(4, 6, 3, 3, device=DEVICE)
    x[1, 2, 0, 0] = bad
    got = norm_add_relu(x, torch.nn.BatchNorm2d(6).to(DEVICE))
    assert got[:, 2].isnan().all()
    assert got[:, :2].isfinite().all()


def test_one_value_per_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm_add_relu(torch.ones(1, 4, 1, 1, device=DEVICE), torch.nn.BatchNorm2d(4).to(DEVICE))


class Reads(torch.nn.Module):
    """A norm whose result is read in unusual ways."""

    def __init__(self, how: str, channels: int = 8) -> None:
        super().__init__()
        self.how = how
        self.first, self.norm = torch.nn.Conv2d(3, channels, 3), torch.nn.BatchNorm2d(channels)
        self.relu, self.second = torch.nn.ReLU(inplace=True), torch.nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        if self.how == "in place":
            z = self.second(self.relu(y)) + y
        elif self.how == "added to":
            y += 1
            z = self.second(y) + y
        elif self.how == "in halves":
            halves = torch.chunk(y, 2, 1)
            z = self.second(y) * halves[-1].exp().mean() + halves[0].exp().mean()
        elif self.how == "by a method":
            z = self.second(y.mul_(2.0)) + y
        else:
            z = torch.stack(torch.chunk(y, 2, 1), 1).square().sum(2) + y.exp().mean()
        return z.flatten(1)


@pytest.mark.parametrize(
    ("how", "channels"),
    [("in place", 8), ("added to", 8), ("in halves", 8), ("in halves", 7), ("by a method", 8), ("stacked", 8)],
)
def test_readers_of_every_kind(how: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    network = Reads(how, channels).to(DEVICE)
    exact, x = copy.deepcopy(network).double(), torch.randn(6, 3, 8, 8, device=DEVICE)
    used = {name for name, _ in network.named_parameters() if how != "stacked" or "second" not in name}

    def found(each: torch.nn.Module, said: torch.Tensor) -> torch.Tensor:
        own = [value for name, value in each.named_parameters() if name in used]
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(said.square().mean(), own)])

    wanted = found(exact, exact(x.double()))
    assert off(found(network, with_fused_norms(network)(x)), wanted) < 1e-4


def test_what_a_graph_would_lose_is_refused() -> None:
    """A layer that works in place, as a statement."""

    class Statement(Reads):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.first(x))
            self.relu(y)
            return self.second(y)

    with pytest.raises(ValueError, match="changes its input"):
        with_fused_norms(Statement(""))


def test_a_layer_that_is_called_by_keyword() -> None:
    class Keyword(Reads):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(input=self.first(input=x))).flatten(1)

    network = Keyword("").to(DEVICE)
    x = torch.randn(5, 3, 6, 6, device=DEVICE)
    wanted = copy.deepcopy(network)(x)
    torch.testing.assert_close(with_fused_norms(network)(x), wanted, rtol=1e-4, atol=1e-4)


def test_branches_on_one_trunk_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trunk's last answer has as many readers as there are branches, and is computed once."""
    # The last norms see four values each: the ten bits of TF32 become a hundredth there.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def network(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return build_model("resnet18", classes=5, width=4)

    mine, theirs = (BranchedStudent(network, 3).branches.to(DEVICE).train() for _ in range(2))
    graph = with_fused_norms(mine)
    norms = [module for module in graph.modules() if isinstance(module, FusedNorm)]
    # The trunk has 10 of a network's 20 norms, and no branch has them again.
    assert len(norms) == 10 + 3 * 10
    x = torch.randn(4, 3, 8, 8, device=DEVICE)
    got, wanted = graph(x), theirs(x)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    pull = torch.randn_like(wanted)
    (got * pull).sum().backward()
    (wanted * pull).sum().backward()
    for (name, a), (_, b) in zip(mine.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=2e-3 * float(b.grad.abs().max()), msg=name)
