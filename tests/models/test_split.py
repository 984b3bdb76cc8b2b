"""Other people's networks as a body and a head, and what is refused."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models import check_split, split
from flipguard.types import InputError

B, C, WIDTH = 5, 7, 11

torch.set_num_threads(1)


class Nested(nn.Module):
    """A head in a submodule, registered before other layers, with dropout in front of it."""

    def __init__(self, outputs: int = C, after: str = "") -> None:
        super().__init__()
        self.after = after
        self.top = nn.ModuleDict({"drop": nn.Dropout(0.5), "out": nn.Linear(WIDTH, outputs)})
        self.first = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        logits = self.top["out"](self.top["drop"](self.first(x)))
        return {"": logits, "softmax": F.log_softmax(logits, -1), "scale": 3 * logits}[self.after]


def inputs() -> Tensor:
    return torch.randn(B, 4, generator=torch.Generator().manual_seed(11))


def test_the_split_network_says_what_the_whole_one_did() -> None:
    network, x = Nested().eval(), inputs()
    expected = network(x)
    hidden = network.first(x)
    model = split(network, classes=C).eval()
    assert (model.head_name, model.feature_width) == ("top.out", WIDTH)
    assert torch.equal(model(x), expected)
    assert torch.equal(model.features(x), hidden)
    assert torch.equal(model.head(model.features(x)), expected)


def test_the_network_comes_back_whole_with_its_new_weights() -> None:
    network = Nested()
    keys = list(network.state_dict())
    model = split(network, classes=C)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(inputs()), torch.arange(B)).backward()
    optimiser.step()
    whole = model.whole()
    assert list(whole.state_dict()) == keys
    assert torch.equal(whole.eval()(inputs()), model.eval()(inputs()))
    with torch.no_grad():
        whole.top["out"].weight.zero_()
    assert model.head.weight.any()


def test_the_last_layer_with_that_many_outputs_is_the_head() -> None:
    network = nn.Sequential(nn.Linear(4, C), nn.ReLU(), nn.Linear(C, C), nn.ReLU(), nn.Linear(C, C), nn.Identity())
    assert split(network, classes=C).head_name == "4"


def test_a_named_head_wins() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main = nn.Linear(4, C)
            self.auxiliary = nn.Linear(4, C)

        def forward(self, x: Tensor) -> Tensor:
            return self.main(x)

    model = split(Auxiliary(), classes=C, head="main")
    check_split(model, inputs())
    assert torch.equal(model.features(inputs()), inputs())
    with pytest.raises(InputError, match="after its last linear layer 'auxiliary'"):
        check_split(split(Auxiliary(), classes=C), inputs())


def test_a_single_linear_layer_is_all_head() -> None:
    model = split(nn.Linear(4, C), classes=C)
    assert torch.equal(model.features(inputs()), inputs())
    check_split(model, inputs())


def test_a_bottleneck_gets_a_head_of_its_own() -> None:
    model = split(Nested(), classes=C, feature_width=2)
    assert model.features(inputs()).shape == (B, 2)
    assert model(inputs()).shape == (B, C)
    check_split(model, inputs())
    assert torch.equal(model.eval().whole()(inputs()), model(inputs()))


def test_a_new_head_for_weights_of_other_classes() -> None:
    model = split(Nested(outputs=13), classes=C, outputs=13)
    assert model(inputs()).shape == (B, C)
    check_split(model, inputs())


@pytest.mark.parametrize("training", [True, False])
def test_the_check_passes_a_right_split_and_leaves_no_trace(training: bool) -> None:
    network = nn.Sequential(nn.Linear(4, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, C))
    model = split(network, classes=C).train(training)
    model.body[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    check_split(model, inputs())
    assert model.training is training
    assert not model.body[1].training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("after", ["softmax", "scale"])
def test_the_check_refuses_what_comes_after_the_head(after: str) -> None:
    model = split(Nested(after=after), classes=C)
    with pytest.raises(InputError, match=r"Nested does something after its last linear layer 'top\.out'"):
        check_split(model, inputs())
    assert model.training


@pytest.mark.parametrize(
    ("network", "head", "message"),
    [
        (Nested(outputs=13), None, r"no linear layer with 7 outputs inside it \(its last ones: top.out \(13\), first"),
        (nn.Sequential(nn.ReLU()), None, r"its last ones: none"),
        (Nested(), "top.missing", "Nested has no layer 'top.missing'"),
        (Nested(), "first", "the head 'first' must be an nn.Linear, it is a Sequential"),
        (Nested(), "first.0", "the head 'first.0' has 11 outputs, expected 7"),
    ],
)
def test_refuses_networks_without_a_fitting_head(network: nn.Module, head: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split(network, classes=C, head=head)
