"""A small transformer for texts, trained from scratch: for where no pretrained one is at hand."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models.classifier import Classifier, check_positive, classifier
from flipguard.types import InputError


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean over each row's real tokens: (B, T, D) and (B, T) of 0 and 1 -> (B, D). A row of padding gives 0.

    >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[2.]])
    """
    weight = mask.to(tokens.dtype)[..., None]
    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)


class Block(nn.Module):
    """Self-attention and a perceptron, each after a layer normalisation and beside a way around it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """x: (B, T, D); allowed: (B, 1, 1, T), which tokens may be looked at."""
        batch, length, width = x.shape
        together = self.queries_keys_values(self.norm1(x)).reshape(batch, length, 3, self.heads, -1)
        query, key, value = together.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.norm2(x))


class TextBody(nn.Module):
    """Token and position embeddings, blocks, and the mean over real tokens: a dict of tensors (B, T) -> (B, D)."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.length = length
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places, std=0.02)

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        ids, mask = x["input_ids"], x["attention_mask"]
        if ids.shape[1] > self.length:
            raise InputError(f"the texts have {ids.shape[1]} tokens and the network takes {self.length}: set length.")
        allowed = mask[:, None, None, :].bool()
        hidden = self.tokens(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, allowed)
        return masked_mean(self.norm(hidden), mask)


def text_transformer(
    *,
    classes: int,
    vocabulary: int = 20_000,
    length: int = 64,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    hidden: int | None = None,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """A pre-norm encoder (Vaswani et al. 2017) on texts of up to `length` tokens out of `vocabulary`.

    Takes {"input_ids", "attention_mask"} as an encoder gives them. Padding is never attended to, and the features are
    the mean over the real tokens. `hidden` is the perceptron's width, four times `width` by default.

    >>> text_transformer(classes=4, vocabulary=100, width=12, heads=3).feature_width
    12
    """
    check_positive(vocabulary=vocabulary, length=length, width=width, layers=layers, heads=heads)
    if width % heads:
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}.")
    body = TextBody(vocabulary, length, width, layers, heads, hidden or 4 * width)
    return classifier(body, width, classes=classes, feature_width=feature_width, dropout=dropout)
