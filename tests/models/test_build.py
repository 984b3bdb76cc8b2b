"""Every network by name: its size against the papers, its shapes, its interface, and that it learns."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models import MODELS, build_model, model_names
from flipguard.models.preactivation import wide_resnet
from flipguard.types import InputError

M, B, C = 3, 5, 7

torch.set_num_threads(1)

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (11, 13)},
    "cnn": {"width": 3},
    "lenet5": {},
    "resnet20": {"width": 4},
    "resnet32": {"width": 4},
    "resnet56": {"width": 2},
    "resnet10": {"width": 4},
    "resnet18": {"width": 4},
    "resnet34": {"width": 4},
    "resnet50": {"width": 4},
    "resnet20_v2": {"width": 4},
    "resnet56_v2": {"width": 2},
    "resnet50_v2": {"width": 4},
    "wrn28_1": {"width": 4},
    "wrn28_4": {"width": 2},
    "vgg11": {"width": 4},
    "vgg13": {"width": 4},
    "vgg16": {"width": 4},
    "densenet40": {"growth": 2},
    "densenet100": {"growth": 2},
}
"""Options that make each network small enough for a test; every name must be here, but those that take texts."""
OF_TEXTS = {"text_transformer"}

every_model = pytest.mark.parametrize("name", sorted(SMALL))


def small(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(5)
    return build_model(name, classes=C, **SMALL[name], **options)


def images(name: str, batch: int = B, channels: int | None = None) -> Tensor:
    default, side = {"mlp": (1, 8), "cnn": (1, 8), "lenet5": (1, 32)}.get(name, (3, 32))
    generator = torch.Generator().manual_seed(6)
    return torch.randn(batch, channels or default, side, side, generator=generator)


def parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def test_every_name_is_tested() -> None:
    assert sorted({*SMALL, *OF_TEXTS}) == list(model_names()) == sorted(MODELS)


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        ("resnet20", {}, 0.27),  # He et al. 2016a, Table 6
        ("resnet32", {}, 0.46),
        ("resnet56", {}, 0.85),
        ("resnet20_v2", {}, 0.27),
        ("resnet56_v2", {}, 0.86),  # Table 6's 0.85 and the two projections
        ("wrn28_1", {}, 0.37),
        ("wrn28_4", {}, 5.85),
        ("densenet40", {}, 1.02),  # Huang et al. 2017, Table 2: 1.0 and, for BC, 0.8
        ("densenet100", {}, 0.77),
        ("resnet18", {}, 11.17),
        ("resnet34", {}, 21.28),
        ("resnet50", {}, 23.52),
        ("vgg11", {}, 9.23),
        ("vgg16", {}, 14.72),
    ],
)
def test_sizes_with_ten_classes(name: str, options: dict[str, Any], millions: float) -> None:
    assert round(parameters(build_model(name, classes=10, **options)) / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "count"),
    # The counts that torchvision (and, for v2, timm) state for ImageNet.
    [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032), ("resnet50_v2", 25_549_352)],
)
def test_sizes_on_imagenet(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(build_model(name, classes=1000, stem="imagenet")) == count


def test_wide_resnet_has_the_papers_size_at_its_largest() -> None:
    with torch.device("meta"):
        assert parameters(wide_resnet(4, 10, classes=10)) == 36_479_194  # WRN-28-10: 36.5M in the paper's Table 4


def test_lenet5_has_its_well_known_size_and_takes_28_pixels() -> None:
    assert parameters(build_model("lenet5", classes=10)) == 61_706
    assert build_model("lenet5", classes=C, image_size=28)(torch.randn(2, 1, 28, 28)).shape == (2, C)


@every_model
@pytest.mark.parametrize("batch", [3, B])
def test_forward_is_the_head_of_the_features(name: str, batch: int) -> None:
    model, x = small(name).eval(), images(name, batch)
    features = model.features(x)
    assert features.shape == (batch, model.feature_width)
    logits = model(x)
    assert logits.shape == (batch, C)
    assert isinstance(model.head, nn.Linear)
    assert torch.equal(logits, model.head(features))
    assert torch.isfinite(logits).all()


@every_model
def test_samples_do_not_meet_in_eval_mode(name: str) -> None:
    model, x = small(name).eval(), images(name)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(model(x)[order], model(x[order]), rtol=1e-4, atol=1e-5)
    assert torch.equal(model(x), model(x))


@every_model
def test_the_seed_decides_the_start(name: str) -> None:
    first, second = small(name).state_dict(), small(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    torch.manual_seed(7)
    other = build_model(name, classes=C, **SMALL[name]).state_dict()
    assert any(not torch.equal(first[key], other[key]) for key in first)


@every_model
def test_a_step_lowers_the_loss_and_reaches_every_parameter(name: str) -> None:
    model, x, y = small(name), images(name), torch.arange(B)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = F.cross_entropy(model(x), y)
    before.backward()
    untouched = [key for key, each in model.named_parameters() if each.grad is None or not each.grad.any()]
    assert untouched == []
    optimiser.step()
    assert F.cross_entropy(model(x), y) < before


@every_model
def test_a_state_dict_makes_the_round_trip(name: str) -> None:
    model, x = small(name), images(name)
    model(x)
    torch.manual_seed(8)
    other = build_model(name, classes=C, **SMALL[name])
    assert not torch.equal(other.eval()(x), model.eval()(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model.eval()(x))


@every_model
def test_a_bottleneck_gives_two_features(name: str) -> None:
    model = small(name, feature_width=2).eval()
    x = images(name)
    assert model.feature_width == 2
    assert model.features(x).shape == (B, 2)
    assert torch.equal(model(x), model.head(model.features(x)))


@every_model
def test_dropout_acts_in_training_alone_and_leaves_the_checkpoint_as_it_is(name: str) -> None:
    plain, dropping, x = small(name), small(name, dropout=0.5), images(name)
    assert list(plain.state_dict()) == list(dropping.state_dict())
    assert torch.equal(plain.eval()(x), dropping.eval()(x))
    dropping.train()
    torch.manual_seed(9)
    features = dropping.features(x)
    share = (features == 0).float().mean() - (plain.train().features(x) == 0).float().mean()
    assert share > 0.1
    torch.manual_seed(9)
    assert torch.equal(dropping(x), dropping.head(features))


@pytest.mark.parametrize("name", [name for name in sorted(SMALL) if name != "mlp"])
def test_other_channels(name: str) -> None:
    assert small(name, in_channels=2).eval()(images(name, channels=2)).shape == (B, C)


@pytest.mark.parametrize("name", ["cnn", "resnet20", "resnet50", "wrn28_1", "vgg11", "densenet40"])
def test_channels_last_changes_the_layout_alone(name: str) -> None:
    model, x = small(name).eval(), images(name)
    expected = model(x)
    got = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@every_model
def test_members_run_side_by_side(name: str) -> None:
    models, x = [small(name).eval()], images(name)
    for seed in range(1, M):
        torch.manual_seed(seed)
        models.append(build_model(name, classes=C, **SMALL[name]).eval())
    weights, buffers = torch.func.stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def member(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(skeleton, (weights, buffers), (x,))

    together = torch.func.vmap(member)(weights, buffers)
    torch.testing.assert_close(together, torch.stack([each(x) for each in models]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet10", "resnet18", "resnet50", "resnet50_v2"])
def test_the_imagenet_stem_sees_large_images(name: str) -> None:
    model = small(name, stem="imagenet").eval()
    assert model.body[:-1](torch.randn(1, 3, 64, 64)).shape[-2:] == (2, 2)
    assert small(name).eval().body[:-1](torch.randn(1, 3, 64, 64)).shape[-2:] == (8, 8)


def test_shortcuts_of_the_cifar_networks() -> None:
    padded, projected = small("resnet20"), small("resnet20", shortcut="project")
    projections = 4 * 8 + 8 * 16 + 2 * (8 + 16)  # two 1 by 1 convolutions and their BatchNorms
    assert parameters(projected) - parameters(padded) == projections
    block = padded.body.stage2[0]
    x = torch.randn(2, 4, 6, 6)
    shortcut = block.shortcut(x)
    assert torch.equal(shortcut[:, :4], x[:, :, ::2, ::2])
    assert torch.equal(shortcut[:, 4:], torch.zeros(2, 4, 3, 3))


def test_preactivation_projects_the_activated_input() -> None:
    block = small("wrn28_1").body.stage2[0]
    x = torch.randn(2, 4, 6, 6)
    active = F.relu(block.activation[0](x))
    inner = F.relu(block.branch[1](F.conv2d(active, block.branch[0].weight, stride=2, padding=1)))
    expected = F.conv2d(inner, block.branch[3].weight, padding=1)
    expected = expected + F.conv2d(active, block.projection.weight, stride=2)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_residual_networks_equal_torchvisions_with_the_same_weights(name: str) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    theirs = models.get_model(name, weights=None, num_classes=C).eval()
    ours = build_model(name, classes=C, stem="imagenet").eval()
    names, values = list(ours.state_dict()), theirs.state_dict().values()
    ours.load_state_dict(dict(zip(names, values, strict=True)))
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_convolutions_start_with_the_variance_of_he() -> None:
    torch.manual_seed(10)
    weight = build_model("vgg11", classes=C).body[4].weight
    assert weight.shape == (128, 64, 3, 3)
    assert weight.var().item() == pytest.approx(2 / (128 * 9), rel=0.05)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet-18", {}, "there is no model 'resnet-18'; did you mean 'resnet18'"),
        ("?", {}, "there is no model '\\?'; there are: cnn, densenet100"),
        ("resnet18", {"widht": 32}, "resnet18 has no option 'widht'; did you mean 'width'"),
        ("resnet18", {"depth": 3}, "resnet18 has no option 'depth'"),
        ("resnet18", {"stem": "cifr"}, "stem must be one of cifar, imagenet, got 'cifr'"),
        ("resnet50_v2", {"stem": "x"}, "stem must be one of"),
        ("resnet20", {"shortcut": "A"}, "shortcut must be one of pad, project, got 'A'"),
        ("resnet18", {"width": 0}, "width must be at least 1, got 0"),
        ("cnn", {"feature_width": 0}, "feature_width must be at least 1"),
        ("cnn", {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ("mlp", {"hidden": ()}, "hidden must hold at least one width"),
        ("mlp", {"hidden": 13}, r"hidden must be a list of widths, such as \[300\], it is 13\."),
        ("mlp", {"hidden": "13"}, r"hidden must be a list of widths, such as \[300\], it is '13'\."),
        ("mlp", {"in_channels": 1}, "mlp has no option 'in_channels'"),
        ("lenet5", {"image_size": 8}, "images of at least 16 by 16, got image_size=8"),
    ],
)
def test_refuses_bad_names_and_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(name, classes=C, **options)


def test_refuses_a_single_class() -> None:
    with pytest.raises(InputError, match="at least 2 classes, got 1"):
        build_model("mlp", classes=1)
