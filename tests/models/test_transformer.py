"""The small text transformer: shapes, its mask, and that it learns."""

import pytest
import torch
from torch.nn import functional as F

from flipguard.models import build_model
from flipguard.models.transformer import masked_mean
from flipguard.types import InputError

B, C, T = 5, 7, 11
SMALL = {"vocabulary": 31, "length": 13, "width": 6, "heads": 2, "layers": 2}
torch.set_num_threads(1)


def texts(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 31, (B, T), generator=generator)
    mask = (torch.arange(T) < torch.tensor([11, 1, 3, 7, 5])[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def test_forward_is_the_head_of_the_features() -> None:
    model = build_model("text_transformer", classes=C, **SMALL)
    x = texts()
    assert model.features(x).shape == (B, model.feature_width) == (B, 6)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert build_model("text_transformer", classes=C, feature_width=2, **SMALL).features(x).shape == (B, 2)


def test_padding_is_never_looked_at() -> None:
    model = build_model("text_transformer", classes=C, **SMALL)
    x = texts()
    other = {**x, "input_ids": torch.where(x["attention_mask"].bool(), x["input_ids"], 29)}
    torch.testing.assert_close(model(x), model(other))
    cut = {name: tensor[2:3, :3] for name, tensor in x.items()}
    torch.testing.assert_close(model(x)[2:3], model(cut))
    swapped = {**x, "input_ids": x["input_ids"].flip(1)}
    assert not torch.allclose(model(x)[0], model(swapped)[0], atol=1e-4)


def test_a_row_of_padding_is_zero_and_not_nan() -> None:
    assert masked_mean(torch.randn(2, 3, 5), torch.zeros(2, 3)).tolist() == [[0.0] * 5] * 2
    model = build_model("text_transformer", classes=C, **SMALL)
    x = {name: torch.zeros(1, T, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    loss = model(x).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_it_learns_and_every_parameter_takes_part() -> None:
    torch.manual_seed(3)
    model = build_model("text_transformer", classes=C, **SMALL)
    x, y = texts(), torch.arange(B)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        assert all(p.grad is not None for p in model.parameters())
        optimiser.step()
    assert losses[-1] < 0.2 * losses[0]


def test_refuses() -> None:
    with pytest.raises(InputError, match="width must be a multiple of heads, got 64 and 7"):
        build_model("text_transformer", classes=C, heads=7)
    with pytest.raises(InputError, match="texts have 11 tokens and the network takes 5"):
        build_model("text_transformer", classes=C, **{**SMALL, "length": 5})(texts())
