"""Refusals that the methods share: a hyper-parameter outside its range is an error when the method is built."""

from collections.abc import Collection

from flipguard.types import InputError


def check_shares(**shares: float) -> None:
    """Weights that divide a whole between two terms lie in [0, 1].

    >>> check_shares(alpha=1.5)
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: alpha must lie between 0 and 1, got 1.5.
    """
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise InputError(f"{name} must lie between 0 and 1, got {value}.")


def check_not_negative(**weights: float) -> None:
    """A negative weight would push the student away from what it is meant to keep."""
    for name, value in weights.items():
        if not value >= 0:
            raise InputError(f"{name} must not be negative, got {value}.")


def check_above_zero(**values: float) -> None:
    """Temperatures divide."""
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"{name} must be above 0, got {value}.")


def check_smoothing(label_smoothing: float) -> None:
    """At 1 the labels would say nothing."""
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}.")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got '{value}'.")
