"""The papers' figures: each a function of predictions or networks that returns data; `draw` makes a picture of it."""

from flipguard.analysis.interpolation import LinePoint, barrier, loss_along_line

__all__ = ["LinePoint", "barrier", "loss_along_line"]
