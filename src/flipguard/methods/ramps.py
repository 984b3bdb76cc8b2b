"""Weights that change over training, as tensors: a captured step has them anew at each replay."""

import torch
from torch import Tensor


def linear_ramp(progress: Tensor, share: float) -> Tensor:
    """Rises from 0 to 1 over this share of training, and stays; 1 from the start when the share is 0.

    >>> [round(float(linear_ramp(torch.tensor(p), 0.2)), 2) for p in (0.0, 0.1, 0.2, 0.9)]
    [0.0, 0.5, 1.0, 1.0]
    """
    return torch.ones_like(progress) if share == 0 else (progress / share).clamp(max=1.0)


def step_ramp(progress: Tensor, share: float) -> Tensor:
    """0 during this share of training, 1 after it.

    >>> [float(step_ramp(torch.tensor(p), 0.2)) for p in (0.0, 0.1, 0.2, 0.9)]
    [0.0, 0.0, 1.0, 1.0]
    """
    return (progress >= share).to(progress.dtype)
