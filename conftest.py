"""What cannot be imported here is not searched for doctests."""

from importlib.util import find_spec

# Triton comes with torch's CUDA builds alone.
collect_ignore = [] if find_spec("triton") else ["src/flipguard/training/normalisation.py"]
