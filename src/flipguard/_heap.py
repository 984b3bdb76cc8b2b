"""What a process of ours does with memory that it has freed."""

import os
import sys

# The names of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Freed memory stays with this process, for the next step to take: whether the C library was told so.

    A training step frees what the next one asks for again. By default glibc gives large blocks back to the system at
    once, and gets them back one zeroed page after another (`benchmarks/freed.py`). Only for processes that are ours: a
    caller of the library decides by itself, as does whoever sets one of glibc's own variables. Elsewhere than on
    glibc nothing is done.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ) or sys.platform != "linux":
        return False
    # A command that trains nothing does without it.
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, -1))
