"""The fuzzers' corpus, what once broke a reader included: each file is taken, or refused in one line of ours."""

import importlib.util
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
_spec = importlib.util.spec_from_file_location("fuzz_targets", FUZZ / "targets.py")
assert _spec is not None
assert _spec.loader is not None
targets = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(targets)
CASES = sorted(path.relative_to(FUZZ / "corpus") for path in (FUZZ / "corpus").rglob("*") if path.is_file())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_reader_takes_it_or_says_why_not(case: Path) -> None:
    targets.one(case.parts[0], (FUZZ / "corpus" / case).read_bytes())


def test_every_reader_has_a_corpus() -> None:
    assert {case.parts[0] for case in CASES} == set(targets.TARGETS)
