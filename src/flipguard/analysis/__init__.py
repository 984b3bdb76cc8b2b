"""The papers' figures: each a function of predictions, runs or networks that returns data; `draw` makes a picture."""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily

if TYPE_CHECKING:
    from flipguard.analysis.interpolation import LinePoint, barrier, loss_along_line

_HOME = dict.fromkeys(("LinePoint", "barrier", "loss_along_line"), "flipguard.analysis.interpolation")

__all__ = ["LinePoint", "barrier", "loss_along_line"]

__getattr__ = lazily(__name__, _HOME)
