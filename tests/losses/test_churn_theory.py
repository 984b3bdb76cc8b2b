"""The churn paper's lemmas and its theorem (Bhojanapalli et al. 2021), as stated, on whatever two models say.

Logits are whole or eighth numbers: two of them are equal or clearly apart, so that rounding cannot break a statement.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flipguard import metrics
from flipguard.losses import divergence_from_uniform, prediction_entropy, probability_distance
from flipguard.metrics import prediction_confidence_per_sample, tally

ROUNDING = 1e-12


@st.composite
def two_models(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of two models, (N, C) each, and labels (N,)."""
    rows, classes = draw(st.integers(1, 13)), draw(st.integers(2, 5))
    row = st.lists(st.integers(-6, 6), min_size=classes, max_size=classes)
    first, second = (draw(st.lists(row, min_size=rows, max_size=rows)) for _ in range(2))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    return torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64), torch.tensor(y)


@given(two_models())
def test_lemma_1(models: tuple[Tensor, Tensor, Tensor]) -> None:
    """Churn is at most the sum of the two errors."""
    first, second, y = models
    pair = tally(y.numpy(), first.argmax(-1).numpy(), second.argmax(-1).numpy())
    churn = float((first.argmax(-1) != second.argmax(-1)).double().mean())
    errors = sum(float((model.argmax(-1) != y).double().mean()) for model in (first, second))
    assert churn <= errors + ROUNDING
    np.testing.assert_allclose(metrics.churn(pair), churn)
    np.testing.assert_allclose(metrics.churn_bound(pair), errors)


@given(two_models())
def test_lemma_2(models: tuple[Tensor, Tensor, Tensor]) -> None:
    """P[predictions differ] <= P[L1 distance > the smaller confidence], and so sample by sample."""
    first, second, _ = models
    differ = first.argmax(-1) != second.argmax(-1)
    confidence = torch.minimum(*(torch.as_tensor(prediction_confidence_per_sample(model)) for model in (first, second)))
    far = probability_distance(first, second) > confidence
    assert differ.double().mean() <= far.double().mean()
    assert not (differ & ~far).any()


binary = st.tuples(*[st.integers(-80, 80).map(lambda eighths: eighths / 8)] * 2)


@given(binary, binary)
def test_theorem_3(one: tuple[float, float], other: tuple[float, float]) -> None:
    """Of two binary models, the one of lower entropy, or further from uniform, is the surer one."""
    logits = torch.tensor([one, other], dtype=torch.float64)
    sure = torch.as_tensor(prediction_confidence_per_sample(logits)).tolist()
    entropy, divergence = prediction_entropy(logits).tolist(), divergence_from_uniform(logits).tolist()
    if entropy[0] <= entropy[1] or divergence[0] >= divergence[1]:
        assert sure[0] >= sure[1] - ROUNDING
