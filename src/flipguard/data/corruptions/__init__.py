"""Common corruptions of images: CIFAR-C's fifteen kinds at its five severities (Hendrycks & Dietterich 2019).

Written after the definitions, as the packages that generate them no longer run on a current NumPy and scikit-image in
every kind, have ImageNet's severities, and draw from one global generator. Every draw here is a hash of (seed, kind,
sample id): a sample is corrupted alike in every run, subset and order, and by the same noise at every severity.

What departs from CIFAR-C, so that figures are near its own but not comparable to the digit: values are rounded, not cut
off; `frost` lays a drawn texture over the image instead of a photograph; motion is blurred by whole pixels, as
ImageMagick does, by our own code.
"""

from flipguard.data.corruptions.apply import CORRUPTIONS, corrupted

__all__ = ["CORRUPTIONS", "corrupted"]
