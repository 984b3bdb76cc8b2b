"""Every scenario once: one line that helps, nothing done is lost. Where namespaces are not allowed, two are skipped."""

import random
from pathlib import Path

import pytest
from scenarios import SCENARIOS, NotAllowed, out_of_memory

pytestmark = pytest.mark.slow


# Flipped bits have tests of their own, which need no process for each.
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "bit" not in name])
def test_it_is_survived(name: str, whole: Path, tmp_path: Path) -> None:
    try:
        SCENARIOS[name](tmp_path, whole, random.Random(37))
    except NotAllowed as reason:
        pytest.skip(str(reason))


@pytest.mark.long
def test_out_of_memory_in_one_of_two_processes(whole: Path, tmp_path: Path) -> None:
    out_of_memory(tmp_path, whole, random.Random(37), processes=2)
