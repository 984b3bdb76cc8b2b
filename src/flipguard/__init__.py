"""flipguard: measure, gate and prevent negative flips when a classifier is updated."""

from flipguard._version import __version__

__all__ = ["__version__"]
