"""Freed memory stays with processes of ours: counted in pages that the system had to bring again, not in seconds."""

import os
import platform
import subprocess
import sys

import pytest

AGAIN = """
import ctypes
import resource
import torch

# PR_SET_THP_DISABLE: a system that deals in huge pages brings few, and tells nothing of what was kept.
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)

def pages():
    # After a few rounds, in which the heap finds its size.
    return [of_one_round() for _ in range(5)][-1]

def of_one_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(7):
        # More than glibc keeps by itself, as the gradient of an embedding is.
        torch.ones(17, 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

"""
WAYS = {
    "left alone": "",
    "kept": "from flipguard._heap import keep_freed_memory; print(keep_freed_memory())",
    "a command": "from flipguard.cli.demo import with_torch; with_torch('flipguard.demo', 'the demo', 'demo')",
    "a worker": "from flipguard.training.processes import begin_worker; begin_worker()",
}
PAGES_OF_ONE = 17 * 2**22 // os.sysconf("SC_PAGE_SIZE")
on_glibc = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc",
    reason="nothing is told to another C library than glibc",
)


def pages_again(way: str, **variables: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    call = [sys.executable, "-W", "error", "-c", f"{AGAIN}{WAYS[way]}\nprint(pages())"]
    done = subprocess.run(call, capture_output=True, text=True, env=plain | variables, check=True)
    return int(done.stdout.split()[-1])


@on_glibc
@pytest.mark.parametrize("way", ["kept", "a command", "a worker"])
def test_what_was_freed_is_taken_again(way: str) -> None:
    assert pages_again(way) < PAGES_OF_ONE // 10


@on_glibc
def test_a_caller_of_the_library_keeps_its_own_ways() -> None:
    assert pages_again("left alone") > 6 * PAGES_OF_ONE


@on_glibc
@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"])
def test_who_set_the_librarys_own_variables_has_the_last_word(variable: str) -> None:
    assert pages_again("kept", **{variable: "131072"}) > 6 * PAGES_OF_ONE
