"""What every loss does to its logits first: check their shapes, and compute in at least float32."""

from torch import Tensor, bfloat16, float16

from flipguard.types import InputError


def at_least_float32(logits: Tensor) -> Tensor:
    """bfloat16 and float16 become float32; float32 and float64 stay as they are.

    A squared difference of 2e4 overflows float16 (its largest number is 65504), and bfloat16 has 8 bits of mantissa.
    """
    return logits.float() if logits.dtype in (bfloat16, float16) else logits


def check_pair(student: Tensor, reference: Tensor) -> None:
    """Both sides must be (B, C): a (B, 1) or a (C,) would broadcast and give a number that means nothing."""
    if student.ndim != 2 or student.shape != reference.shape:
        raise InputError(
            f"expected two tensors of logits of one shape (B, C), got {tuple(student.shape)} and "
            f"{tuple(reference.shape)}; bring the reference to the student's classes first."
        )


def check_labels(logits: Tensor, y: Tensor) -> None:
    """logits (B, C) and class codes y (B,) must have one B: a y of (B, 1) would broadcast to (B, B)."""
    if logits.ndim != 2 or y.shape != logits.shape[:1]:
        raise InputError(f"expected logits (B, C) and labels (B,), got {tuple(logits.shape)} and {tuple(y.shape)}.")


def check_logits(logits: Tensor) -> None:
    """Logits are (B, C): a (C,) would be taken for a batch of numbers."""
    if logits.ndim != 2:
        raise InputError(f"expected logits (B, C), got {tuple(logits.shape)}.")
