"""The papers' figures as functions of networks, predictions or run folders."""

from flipguard.analysis.interpolation import LinePoint, barrier, loss_along_line

__all__ = ["LinePoint", "barrier", "loss_along_line"]
"""The papers' figures: each a function of predictions that returns data; `draw` makes a picture of any of them."""
