"""Shares as people write them: 0.01, or 1%."""

from decimal import Decimal
from typing import Any


def as_share(value: Any) -> Any:
    """A text in percent as the fraction that it means; anything else as it is, for whoever checks it to judge.

    >>> as_share("1%"), as_share(" 0.5 %"), as_share(0.02), as_share("one%")
    (0.01, 0.005, 0.02, 'one%')
    """
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        return value
    try:
        return float(Decimal(value.rstrip().removesuffix("%").strip()).scaleb(-2))
    except (ArithmeticError, ValueError):
        return value
