"""Inputs on which references disagree: what a distillation term is shown instead of the data itself."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from flipguard.data import random_bits, random_normal, random_uniform
from flipguard.losses import kl_divergence
from flipguard.losses.logits import at_least_float32
from flipguard.types import Batch, InputError, Normalisation, Output, Reference, Student

Kind = Literal["gaussian", "ods", "conf_ods", "tdiv", "tdiv_sdiv"]
_OF_PAIRS = ("tdiv", "tdiv_sdiv")


@dataclass(frozen=True)
class Perturbation:
    r"""x + ε for the distillation term (LatentBE, Nam et al. 2022, App. B.4); cross-entropy sees x itself.

    - `gaussian` (Eq. 34): ε = γ·z, z standard normal.
    - `ods` (Eq. 4, 35): ε = γ√D·g/‖g‖₂, g = ∇ₓ wᵀσ(T_m(x)/τ), w uniform in [-1, 1] per sample, m one teacher per batch.
    - `conf_ods` (Nam et al. 2021): the same times the largest of σ(T_m(x)/τ).
    - `tdiv` (Eq. 13, 36): g = ∇ₓ KL(sg σ(T_i(x)) ‖ σ(T_j(x))) for one pair of teachers i ≠ j per batch.
    - `tdiv_sdiv` (Eq. 12-14, 36): g less the same gradient of the student's members i and j. A student of one member
      has no pairs (Eq. 7): it gets `tdiv`. While all members are equal, as at LatentBE's first step, that part is zero.

    `size` is γ, 1/255, in pixels between 0 and 1: the batch's normalisation leads there and back, and pixels are
    clamped. Inputs without a normalisation are moved in their own units, unclamped. A gradient that is exactly zero
    (saturated teachers) moves nothing. `temperature` is that of ODS alone; divergences have none. The student is in
    evaluation mode meanwhile, so that its BatchNorm statistics do not move. All draws are keyed by (seed, step, index).
    """

    kind: Kind = "tdiv_sdiv"
    size: float = 1 / 255
    temperature: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"a perturbation is one of {', '.join(get_args(Kind))}, got '{self.kind}'.")
        if not self.size >= 0 or not self.temperature > 0:
            raise InputError(
                f"a perturbation needs a size of at least 0 and a temperature above 0, got {self.size} and "
                f"{self.temperature}."
            )

    def __call__(self, student: Student, reference: Reference, batch: Batch) -> Batch:
        """The batch with x + ε for x; no gradient leads through ε."""
        x = _checked(batch.x, reference, self.kind)
        with torch.enable_grad():
            pixels = _pixels(x.detach(), batch.normalisation).requires_grad_(self.kind != "gaussian")
            moved = self.size * self._direction(student, reference, batch, pixels)
        pixels = pixels.detach()
        if batch.normalisation is None:
            return replace(batch, x=(pixels + moved).to(x.dtype))
        # As a difference to x, so that a sample that is not moved stays what it was to the bit.
        moved = ((pixels + moved).clamp(0, 1) - pixels) / _channels(batch.normalisation.std, pixels)
        return replace(batch, x=(x.detach() + moved).to(x.dtype))

    def _direction(self, student: Student, reference: Reference, batch: Batch, pixels: Tensor) -> Tensor:
        """ε in units of γ, in the shape of the pixels."""
        if self.kind == "gaussian":
            draws = pixels[0].numel()
            noise = random_normal(batch.seed, batch.step, batch.index, draws=draws).to(pixels.dtype)
            return noise.reshape(pixels.shape)
        shown = replace(batch, x=_normalised(pixels, batch))
        if self.kind in _OF_PAIRS:
            return _unit(self._disagreement(student, reference, shown, pixels))
        first, _ = _drawn(shown, reference.members)
        teacher = at_least_float32(_asked(reference, shown, first))
        probabilities = torch.softmax(teacher / self.temperature, dim=-1)
        guide = 2 * random_uniform(batch.seed, batch.step, batch.index, draws=probabilities.shape[-1]) - 1
        (gradient,) = torch.autograd.grad((guide.to(probabilities.dtype) * probabilities).sum(), pixels)
        direction = _unit(gradient)
        if self.kind == "ods":
            return direction
        confidence = probabilities.detach().amax(-1).to(direction.dtype)
        return direction * confidence.reshape(-1, *[1] * (direction.ndim - 1))

    def _disagreement(self, student: Student, reference: Reference, shown: Batch, pixels: Tensor) -> Tensor:
        """∇ₓ(TDiv - SDiv), or of TDiv alone."""
        first, second = _drawn(shown, reference.members)
        with torch.no_grad():
            fixed = _asked(reference, shown, first)
        total = _divergence(fixed, _asked(reference, shown, second))
        if self.kind == "tdiv_sdiv" and student.members > 1:
            if student.members != reference.members:
                raise InputError(
                    f"tdiv_sdiv takes the same pair of both sides, but the student has {student.members} members and "
                    f"the reference '{reference.name}' {reference.members}: make them as many, or use tdiv."
                )
            with evaluating(student):
                with torch.no_grad():
                    fixed = _asked_student(student, shown, first)
                total = total - _divergence(fixed, _asked_student(student, shown, second))
        (gradient,) = torch.autograd.grad(total, pixels)
        return gradient


def as_perturbation(value: "Perturbation | str | Mapping[str, Any] | None") -> Perturbation | None:
    """A perturbation as a spec gives it: its kind, or a mapping of its options.

    >>> as_perturbation("tdiv").kind, as_perturbation({"kind": "ods", "size": 0.01}).size
    ('tdiv', 0.01)
    """
    if value is None or isinstance(value, Perturbation):
        return value
    if isinstance(value, str):
        return Perturbation(value)  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise InputError(f"a perturbation is a kind or a mapping of options, got {type(value).__name__}.")
    known = [entry.name for entry in fields(Perturbation)]
    for name in value:
        if name not in known:
            raise InputError(f"a perturbation has no option '{name}'. Options: {', '.join(known)}.")
    return Perturbation(**value)


@contextmanager
def evaluating(student: Student) -> Iterator[None]:
    """All of a student's modules in evaluation mode, and afterwards each in the mode that it had."""
    modes = [(module, module.training) for module in student.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _checked(x: Any, reference: Reference, kind: str) -> Tensor:
    if isinstance(x, dict) or not x.is_floating_point():
        found = "a dict of tensors" if isinstance(x, dict) else f"{x.dtype}"
        raise InputError(
            f"perturbations need inputs that are one tensor of floats, not {found}: set perturbation=None."
        )
    if not reference.differentiable:
        raise InputError(
            f"the reference '{reference.name}' holds logits of the inputs as they are: pass its networks to use the "
            f"perturbation '{kind}', or set perturbation=None."
        )
    if kind in _OF_PAIRS and reference.members < 2:
        raise InputError(
            f"{kind} needs a reference of at least 2 members, '{reference.name}' has {reference.members}: "
            "use gaussian, ods or conf_ods."
        )
    return x


def _drawn(batch: Batch, members: int) -> tuple[Tensor, Tensor]:
    """Two members by the batch's step, each an index (1,); different ones where there are two."""
    # No sample has the place -1, so that this draw has nothing in common with theirs.
    bits = random_bits(batch.seed, batch.step, torch.full_like(batch.index[:1], -1))
    first = ((bits >> 16) & 0xFFFFFF) % members
    return first, (first + 1 + ((bits >> 40) & 0xFFFFFF) % max(1, members - 1)) % members


def _asked(reference: Reference, batch: Batch, which: Tensor) -> Tensor:
    """One member's logits (B, C'); from the reference's own way to ask only one, where it has it."""
    chosen: Callable[[Batch, Tensor], Tensor] | None = getattr(reference, "chosen", None)
    return reference(batch).logits.index_select(0, which)[0] if chosen is None else chosen(batch, which)


def _asked_student(student: Student, batch: Batch, which: Tensor) -> Tensor:
    """The same of a student, not through a parallel wrapper, which would wait for gradients of this pass too."""
    chosen: Callable[[Any, Tensor], Tensor] | None = getattr(student, "chosen", None)
    if chosen is not None:
        return chosen(batch.x, which)
    forward: Callable[[Any], Output] = getattr(student, "forward", student)
    return forward(batch.x).logits.index_select(0, which)[0]


def _divergence(fixed: Tensor, moving: Tensor) -> Tensor:
    """Σ over the batch of KL(σ(fixed) ‖ σ(moving)), two (B, C): samples have gradients of their own."""
    return kl_divergence(moving, fixed, temperature=1.0).sum()


def _unit(gradient: Tensor) -> Tensor:
    """Each sample's gradient at the length √D; zero stays zero."""
    flat = at_least_float32(gradient).flatten(1)
    # Relative to its largest entry first: the squares of a saturated teacher's gradients underflow.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
    length = flat.square().sum(1, keepdim=True).sqrt().clamp(min=1)
    return (flat / length * flat.shape[1] ** 0.5).reshape(gradient.shape)


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Per-channel numbers that broadcast against (B, C, …), made on the device: a captured step may not copy."""
    parts = [torch.full((1,), value, dtype=like.dtype, device=like.device) for value in values]
    return torch.cat(parts).reshape(-1, *[1] * (like.ndim - 2))


def _pixels(x: Tensor, normalisation: Normalisation | None) -> Tensor:
    wide = at_least_float32(x)
    if normalisation is None:
        return wide.clone()
    return wide * _channels(normalisation.std, wide) + _channels(normalisation.mean, wide)


def _normalised(pixels: Tensor, batch: Batch) -> Tensor:
    """Pixels as the networks take them."""
    assert isinstance(batch.x, Tensor)
    if batch.normalisation is None:
        return pixels.to(batch.x.dtype)
    mean, std = (_channels(values, pixels) for values in (batch.normalisation.mean, batch.normalisation.std))
    return ((pixels - mean) / std).to(batch.x.dtype)
