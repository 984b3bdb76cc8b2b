"""Images that grow with the training: a student meets small ones first, and whole ones at the end.

A convolution's cost falls with the square of an image's side, and what a network learns from few pixels serves it for
many (progressive resizing; EfficientNetV2, Tan and Le 2021). References are asked of the whole image, which is what
they know: the student learns from a small form what they say of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flipguard.training.recipe import Recipe
from flipguard.types import InputError, Output

_ASKED = ("forward", "chosen", "stale_logits")
"""The ways to ask a student beside a call; each takes the inputs first."""


def spans(recipe: Recipe) -> Iterator[tuple[float, range]]:
    """Each scale in turn with its epochs; neighbours that are alike are one.

    >>> list(spans(Recipe(epochs=6, scales=(0.5, 1.0, 1.0)))), list(spans(Recipe(epochs=6)))
    ([(0.5, range(0, 2)), (1.0, range(2, 6))], [(1.0, range(0, 6))])
    """
    scales = recipe.scales or (1.0,)
    of_epoch = [scales[epoch * len(scales) // recipe.epochs] for epoch in range(recipe.epochs)]
    begin = 0
    for epoch in range(1, recipe.epochs + 1):
        if epoch == recipe.epochs or of_epoch[epoch] != of_epoch[begin]:
            yield of_epoch[begin], range(begin, epoch)
            begin = epoch


def pixels_at(recipe: Recipe, epoch: int) -> float:
    """The share of an image's pixels that a student meets in an epoch, and after the last one.

    >>> [pixels_at(Recipe(epochs=4, scales=(0.5, 1.0)), epoch) for epoch in (1, 2, 4)]
    [0.25, 1.0, 1.0]
    """
    return next((scale**2 for scale, epochs in spans(recipe) if epoch in epochs), 1.0)


def at_scale(student: Any, scale: float) -> Any:
    """The student as a method asks it, which meets its images at this share of their sides."""
    return student if scale == 1 else _Scaled(student, scale)


class _Scaled:
    def __init__(self, student: Any, scale: float) -> None:
        self._student, self._scale = student, scale

    def __call__(self, x: Any, *, features: bool = False) -> Output:
        said: Output = self._student(scaled(x, self._scale), features=features)
        return said

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._student, name)
        return self._asked(found) if name in _ASKED else found

    def _asked(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, *more, **named: ask(scaled(x, self._scale), *more, **named)


def scaled(x: Any, scale: float) -> Tensor:
    """Images (B, C, H, W) at a share of their sides, by bilinear interpolation of what a pixel covers.

    >>> scaled(torch.ones(2, 3, 32, 48), 0.75).shape
    torch.Size([2, 3, 24, 36])
    """
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise InputError("scales is for images, which these inputs are not: leave it out.")
    sides = [max(1, round(scale * side)) for side in x.shape[2:]]
    # In float32 whatever the precision: not every device has such a kernel for half of it.
    small = torch.nn.functional.interpolate(x.float(), sides, mode="bilinear", antialias=True)
    layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    return small.to(x.dtype).contiguous(memory_format=layout)
