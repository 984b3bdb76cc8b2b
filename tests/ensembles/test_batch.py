"""BatchEnsemble: any network converted, its members against networks with their weights, and the merge."""

import copy
import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from flipguard.ensembles import BatchEnsemble, batch_ensemble, check_folding, combined, merge
from flipguard.ensembles.rank_one import RankOne, factor_parameters
from flipguard.models import build_model
from flipguard.types import InputError

M, B, C, D = 3, 5, 7, 11


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)


class Pooled(nn.Module):
    """Tokens through torch's transformer, with the batch first or second, then a head."""

    def __init__(self, *, batch_first: bool, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 13, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(8, C)
        self.axis = 1 if batch_first else 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x if self.axis else x.transpose(0, 1)).mean(self.axis))


class Cross(nn.Module):
    """Attention between inputs of different widths: three input projections of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True)
        self.head = nn.Linear(8, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x[..., :4], x[..., :6], need_weights=False)[0].mean(1))


class Twice(nn.Module):
    """One layer object used at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Linear(D, D)
        self.head = nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(torch.relu(self.first(x))))


def image(*size: int) -> Tensor:
    return torch.randn(B, *size)


NETWORKS: dict[str, Any] = {
    "mlp": lambda: (build_model("mlp", classes=C, input_size=D, hidden=(13,)), image(D)),
    "cnn": lambda: (build_model("cnn", classes=C, width=4), image(1, 8, 8)),
    "resnet18": lambda: (build_model("resnet18", classes=C, width=4), image(3, 16, 16)),
    "resnet50": lambda: (build_model("resnet50", classes=C, width=4), image(3, 16, 16)),
    "wrn": lambda: (build_model("wrn28_1", classes=C), image(3, 8, 8)),
    "vgg11": lambda: (build_model("vgg11", classes=C, width=4), image(3, 32, 32)),
    "densenet": lambda: (build_model("densenet40", classes=C), image(3, 8, 8)),
    "grouped": lambda: (
        nn.Sequential(
            nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=4), nn.Flatten(), nn.Linear(36, C)
        ),
        image(6, 5, 5),
    ),
    "one dimension": lambda: (nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(9, C)), image(2, 5)),
    "three dimensions": lambda: (nn.Sequential(nn.Conv3d(2, 3, 2), nn.Flatten(), nn.Linear(24, C)), image(2, 3, 3, 3)),
    "transformer": lambda: (Pooled(batch_first=True), image(6, 8)),
    "transformer, batch second": lambda: (Pooled(batch_first=False), image(6, 8)),
    "cross-attention": lambda: (Cross(), image(6, 8)),
    "shared layer": lambda: (Twice(), image(D)),
    "bare layer": lambda: (nn.Linear(D, C), image(D)),
    "tokens": lambda: (nn.Sequential(nn.Linear(8, 13), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 13, C)), image(6, 8)),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def spread(ensemble: BatchEnsemble) -> BatchEnsemble:
    with torch.no_grad():
        for factor in factor_parameters(ensemble):
            factor.normal_(0, 0.3)
    return ensemble


def member_by_hand(ensemble: BatchEnsemble, member: int) -> nn.Module:
    """A plain network whose every weight is multiplied by the member's factors, group by group."""
    plain = merge(ensemble)
    for name, layer in ensemble.network.named_modules():
        if not isinstance(layer, RankOne):
            continue
        for weight in layer.names:
            raw = layer._parameters[weight].detach().clone()
            r, s = (1 + layer._parameters[f"{weight}_{side}"].detach()[member] for side in "rs")
            groups = getattr(layer, "groups", 1)
            for rows, inputs, outputs in zip(raw.chunk(groups), r.chunk(groups), s.chunk(groups), strict=True):
                rows.mul_(torch.outer(outputs, inputs).reshape(*rows.shape[:2], *[1] * (rows.ndim - 2)))
            plain.get_submodule(name)._parameters[weight].data.copy_(raw)
    return plain


@every_network
def test_factors_of_one_are_the_network_itself(name: str) -> None:
    """In evaluation mode to the last bit, with and without gradients, on torch's fast path for transformers too."""
    network, x = NETWORKS[name]()
    ensemble = batch_ensemble(network, M).eval()
    network.eval()
    assert torch.equal(ensemble.each(x).logits, network(x).expand(M, B, C))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(ensemble.each(x).logits, network(x).expand(M, B, C))
    assert all(isinstance(layer, RankOne) for layer in ensemble.network.modules() if isinstance(layer, nn.Linear))


@every_network
def test_members_have_the_weights_that_the_factors_say(name: str) -> None:
    network, x = NETWORKS[name]()
    ensemble = spread(batch_ensemble(network, M)).eval()
    with torch.no_grad():
        logits = ensemble.each(x).logits
        for member in range(M):
            expected = member_by_hand(ensemble, member).eval()(x)
            assert torch.allclose(logits[member], expected, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(logits[0], logits[1], atol=1e-3)
        assert torch.allclose(ensemble(x), combined(logits, "probabilities"))


@every_network
def test_a_folded_pass_gives_what_single_passes_give(name: str) -> None:
    """In training mode with the statistics of evaluation: only the way through the layers differs."""
    network, x = NETWORKS[name]()
    ensemble = spread(batch_ensemble(network, M)).eval()
    apart = ensemble.each(x).logits
    ensemble.training = True
    folds = name not in ("transformer", "transformer, batch second", "cross-attention")
    assert ensemble.folded == folds
    assert torch.allclose(ensemble.each(x).logits, apart, rtol=1e-3, atol=1e-4)
    check_folding(ensemble, x)


@every_network
def test_merge_is_the_plain_network(name: str) -> None:
    network, _ = NETWORKS[name]()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    ensemble = batch_ensemble(network, M)
    merged = merge(ensemble)
    assert type(merged) is type(network)
    assert [type(module) for module in merged.modules()] == [type(module) for module in network.modules()]
    assert list(merged.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in merged.state_dict().items())
    assert [n for n, _ in merged.named_parameters()] == [n for n, _ in network.named_parameters()]
    # The original is not touched by any of it.
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(isinstance(module, RankOne) for module in network.modules())


@every_network
@pytest.mark.parametrize("how", ["mean_of_products", "product_of_means"])
def test_merge_of_one_member_is_exact(name: str, how: Any) -> None:
    network, x = NETWORKS[name]()
    ensemble = spread(batch_ensemble(network, 1)).eval()
    with torch.no_grad():
        alone, merged = ensemble.each(x).logits[0], merge(ensemble, how=how).eval()(x)
        assert torch.allclose(merged, alone, rtol=1e-3, atol=1e-4)
        assert not torch.allclose(merged, network.eval()(x), rtol=1e-2, atol=1e-2)


def test_the_two_ways_to_merge() -> None:
    """r = (1, 3), s = (1, 2) by member on a weight of 1: the mean product is (1 + 6) / 2, of means 2 · 1.5."""
    plain = nn.Linear(1, 1, bias=False)
    nn.init.ones_(plain.weight)
    ensemble = batch_ensemble(plain, 2)
    layer: Any = ensemble.network
    with torch.no_grad():
        layer.weight_r.copy_(torch.tensor([[0.0], [2.0]]))
        layer.weight_s.copy_(torch.tensor([[0.0], [1.0]]))
    assert float(merge(ensemble).weight.detach()) == 3.5
    assert float(merge(ensemble, how="product_of_means").weight.detach()) == 3.0
    assert float(merge(ensemble, weights=(0, 1)).weight.detach()) == 6.0
    assert float(merge(ensemble, weights=(0.75, 0.25)).weight.detach()) == 2.25
    assert ensemble(torch.ones(1, 1)).shape == (1, 1)


def test_features_belong_to_the_members() -> None:
    ensemble = spread(batch_ensemble(build_model("cnn", classes=C, width=4), M))
    x = image(1, 8, 8)
    for mode in (False, True):
        ensemble.train(mode)
        answer = ensemble.each(x, features=True)
        assert answer.features is not None
        assert answer.features.shape == (M, B, 8)
        assert answer.logits.shape == (M, B, C)
    eval_answer = ensemble.eval().each(x, features=True)
    assert torch.equal(eval_answer.logits, ensemble.each(x).logits)
    head: Any = member_by_hand(ensemble, 1).head  # type: ignore[union-attr]
    assert torch.allclose(head(eval_answer.features[1]), eval_answer.logits[1], atol=1e-5)  # type: ignore[index]


def test_batch_norm_sees_all_members_rows() -> None:
    """Members with different factors: one mean and variance over M·B rows, as a loop over the members gives them."""
    layer, norm = nn.Linear(D, 13), nn.BatchNorm1d(13, momentum=1.0)
    ensemble = spread(batch_ensemble(nn.Sequential(layer, norm, nn.Linear(13, C)), M))
    x = image(D)
    ensemble.each(x)
    found: Any = ensemble.network
    first = ensemble.network[0]  # type: ignore[index]
    r, s = 1 + first.weight_r.detach(), 1 + first.weight_s.detach()
    rows = torch.cat([(x * r[m]) @ layer.weight.detach().T * s[m] + layer.bias.detach() for m in range(M)])
    assert torch.allclose(found[1].running_mean, rows.mean(0), atol=1e-5)
    assert torch.allclose(found[1].running_var, rows.var(0), atol=1e-4)


@pytest.mark.parametrize("mode", ["folded", "one by one"])
def test_gradients(mode: str) -> None:
    """A factor's gradient is M times that of the loss: its student divides the loss's by M before."""
    ensemble = spread(batch_ensemble(nn.Sequential(nn.Linear(D, 13), nn.Tanh(), nn.Linear(13, C)).double(), M))
    ensemble.train(mode == "folded")
    x, pull = image(D).double(), torch.randn(M, B, C, dtype=torch.float64)
    (ensemble.each(x).logits * pull).sum().backward()
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        times = M if any(parameter is factor for factor in factor_parameters(ensemble)) else 1
        place = (0,) * parameter.ndim
        with torch.no_grad():
            ends = []
            for step in (1e-6, -1e-6):
                parameter[place] += step
                ends.append(float((ensemble.each(x).logits * pull).sum()))
                parameter[place] -= step
        assert float(parameter.grad[place]) == pytest.approx(times * (ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_a_state_dict_goes_round() -> None:
    network, x = NETWORKS["resnet18"]()
    first, second = spread(batch_ensemble(network, M)), batch_ensemble(network, M)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(x), second.eval()(x))
    names = set(first.network.state_dict()) - set(network.state_dict())
    assert names
    assert all(name.endswith(("weight_r", "weight_s")) for name in names)
    copied = copy.deepcopy(first)
    spread(first)
    assert torch.equal(copied(x), second(x))
    assert not torch.equal(first(x), second(x))


def test_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(C, D)
            self.one, self.two = nn.Linear(D, D, bias=False), nn.Linear(D, D)
            self.two.weight = self.one.weight
            self.head = nn.Linear(D, C)
            self.head.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.two(self.one(self.words(x)))))

    network, x = Tied(), torch.arange(B)
    ensemble = spread(batch_ensemble(network, M)).eval()
    inside: Any = ensemble.network
    # The head shares its weight with an embedding, which has no factors: both stay as they are.
    assert not isinstance(inside.head, RankOne)
    assert inside.one.weight_r is inside.two.weight_r
    merged: Any = merge(ensemble)
    assert merged.one.weight is merged.two.weight
    assert merged.head.weight is merged.words.weight
    assert torch.allclose(ensemble.each(x).logits[1], member_by_hand(ensemble, 1)(x), atol=1e-4)


def test_normal_factors_are_around_one() -> None:
    torch.manual_seed(0)
    first = batch_ensemble(nn.Linear(503, 509), M, init="normal")
    torch.manual_seed(0)
    again = batch_ensemble(nn.Linear(503, 509), M, init="normal")
    for one, other in zip(factor_parameters(first), factor_parameters(again), strict=True):
        assert torch.equal(one, other)
        assert float(one.detach().mean()) == pytest.approx(0, abs=0.05)
        assert float(one.detach().std()) == pytest.approx(0.5, rel=0.05)
    ones = batch_ensemble(nn.Linear(D, C), M, init="ones", std=0.5)
    assert all(not factor.any() for factor in factor_parameters(ones))


def test_dict_inputs_are_folded_too() -> None:
    class FromDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(D, C)

        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return self.head(x["a"] + x["b"])

    ensemble = spread(batch_ensemble(FromDict(), M))
    x = {"a": image(D), "b": image(D)}
    assert torch.allclose(ensemble.train().each(x).logits, ensemble.eval().each(x).logits, atol=1e-5)


class Turned(nn.Module):
    """Moves the batch to the second axis by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x.transpose(0, 1)).transpose(0, 1).mean(1))


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.linear(x, self.inner.weight))


class Standardised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight / self.weight.norm(), self.bias)


def test_networks_that_cannot_be_folded() -> None:
    x = image(6, D)
    turned = batch_ensemble(Turned(), M)
    with pytest.raises(InputError, match="reach each other's rows"):
        check_folding(turned, x)
    apart = spread(batch_ensemble(Turned(), M, folded=False))
    assert torch.equal(apart.train().each(x).logits, apart.eval().each(x).logits)
    check_folding(apart, x)
    with pytest.raises(InputError, match="6 rows for 5 members"):
        batch_ensemble(Turned(), 5).each(image(6, D)[:1])
    with pytest.raises(InputError, match="reads the weight of a Linear without calling"):
        batch_ensemble(Reading(), M).each(image(D))
    reading = spread(batch_ensemble(Reading(), M, folded=False)).eval()
    rows = image(D)
    assert torch.allclose(reading.each(rows).logits[2], member_by_hand(reading, 2)(rows), atol=1e-5)
    own = batch_ensemble(Standardised(D, C), M)
    assert not own.folded
    with pytest.raises(InputError, match="cannot be folded"):
        batch_ensemble(Standardised(D, C), M, folded=True)
    with pytest.raises(InputError, match="no pass of its own outside"):
        own.network(image(D))
    assert not batch_ensemble(nn.ModuleList([nn.LSTM(D, D), nn.Linear(D, C)]), M).folded
    assert batch_ensemble(nn.ModuleList([nn.LSTM(D, D, batch_first=True), nn.Linear(D, C)]), M).folded


def test_a_network_that_drops_rows() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(D, C)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x)[1:]

    with pytest.raises(InputError, match="gave 14 rows for 3 members"):
        batch_ensemble(First(), M).each(image(D))


def test_refusals() -> None:
    with pytest.raises(InputError, match="at least 1 member"):
        batch_ensemble(nn.Linear(D, C), 0)
    with pytest.raises(InputError, match="init must be 'ones' or 'normal'"):
        batch_ensemble(nn.Linear(D, C), M, init="signs")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="already"):
        batch_ensemble(batch_ensemble(nn.Linear(D, C), M), M)
    with pytest.raises(InputError, match="no convolution or linear layer"):
        batch_ensemble(nn.BatchNorm1d(D), M)
    with pytest.raises(InputError, match="remove its parametrisations"):
        batch_ensemble(parametrizations.weight_norm(nn.Linear(D, C)), M)
    ensemble = batch_ensemble(nn.Linear(D, C), M)
    with pytest.raises(InputError, match="one weight for each of 3 members, got 2"):
        merge(ensemble, weights=(0.5, 0.5))
    with pytest.raises(InputError, match="not 'votes'"):
        merge(ensemble, how="votes")  # type: ignore[arg-type]


def test_half_precision_keeps_its_type() -> None:
    ensemble = spread(batch_ensemble(NETWORKS["cnn"]()[0], M))
    x = image(1, 8, 8)
    for mode in (True, False):
        ensemble.train(mode)
        with torch.autocast("cpu", torch.bfloat16):
            logits = ensemble.each(x).logits
        assert logits.dtype == torch.bfloat16
        assert bool(torch.isfinite(logits).all())


if importlib.util.find_spec("timm") is not None:

    @pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0"])
    def test_networks_of_timm(name: str) -> None:
        options = {"img_size": 32} if name.startswith("vit") else {}
        network = build_model(f"timm:{name}", classes=C, **options).eval()
        x = image(3, 32, 32)
        ensemble = batch_ensemble(network, M).eval()
        with torch.no_grad():
            assert torch.equal(ensemble.each(x).logits, network(x).expand(M, B, C))
            apart = spread(ensemble).each(x).logits
            check_folding(ensemble, x)
            ensemble.training = True
            assert torch.allclose(ensemble.each(x).logits, apart, rtol=1e-2, atol=1e-2 * float(apart.abs().max()))
        assert list(merge(ensemble).state_dict()) == list(network.state_dict())


@pytest.mark.parametrize("name", ["grouped", "one dimension", "tokens", "resnet18"])
def test_a_folded_pass_has_the_gradients_of_single_passes(name: str) -> None:
    """Of weights, factors and inputs, in double precision; without BatchNorm's statistics, which see other rows."""
    network, x = NETWORKS[name]()
    ensemble = spread(batch_ensemble(network.double(), M)).eval()
    assert ensemble.folded
    found = []
    for folded in (True, False):
        shown = x.double().requires_grad_()
        # Evaluation mode inside, the way of training outside.
        ensemble.training = folded
        ensemble.each(shown).logits.square().sum().backward()
        found.append([shown.grad, *(parameter.grad for parameter in ensemble.parameters())])
        ensemble.zero_grad()
    for folded_gradient, single in zip(*found, strict=True):
        assert (folded_gradient is None) == (single is None)
        if single is not None:
            torch.testing.assert_close(folded_gradient, single)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_keeps_a_deviation_that_a_rounded_factor_has_not(dtype: torch.dtype) -> None:
    """1.012 is 1.0156 in bfloat16, or 1.0078; over many weights what it does is 1.012, and so is its gradient."""
    layer = nn.Linear(4096, C, bias=False)
    ensemble = batch_ensemble(layer, 2).train()
    deviation = ensemble.network._parameters["weight_r"]
    with torch.no_grad():
        layer.weight.uniform_(1, 2)
        ensemble.network._parameters["weight"].copy_(layer.weight)
        deviation.copy_(torch.tensor([0.012, -0.012])[:, None].expand(2, 4096))
    with torch.autocast("cpu", torch.bfloat16):
        said = ensemble.each(torch.ones(B, 4096, dtype=dtype)).logits
    plain = layer.weight.detach().sum(1)
    # The answer itself has three digits in half precision, and is averaged over seven of them.
    first, second = (said.float() / plain - 1).mean((1, 2)).tolist()
    assert (first, second) == pytest.approx((0.012, -0.012), rel=0.15)
    said.float().sum().backward()
    wanted = 2 * B * layer.weight.detach().sum(0)
    torch.testing.assert_close(deviation.grad, wanted.expand(2, 4096), rtol=1e-2, atol=0)


def test_the_memory_format_of_images_stays() -> None:
    """Of what a layer answers, and of its gradient: to turn them round would cost as much as the layer."""
    network = nn.Conv2d(5, 7, 3, padding=1).to(memory_format=torch.channels_last)
    ensemble = batch_ensemble(network, M).train()
    x = torch.randn(2 * M, 5, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    y = ensemble.network(x)
    for found in (y, *torch.autograd.grad(y.square().sum(), [x])):
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert not found.is_contiguous()
