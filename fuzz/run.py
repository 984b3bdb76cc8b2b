"""Fuzz one reader, or each in turn.

    pip install atheris
    python fuzz/run.py csv -max_total_time=60
    python fuzz/run.py all -max_total_time=30        each target for so long, in a process of its own

Inputs start from fuzz/corpus/TARGET, which is not written to. What breaks a reader is left in fuzz/found/TARGET: mend
the reader, and put the smallest such file into the corpus, which the tests go through.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    target, *options = sys.argv[1:] or ["--help"]
    if target == "all":
        sys.path.insert(0, str(HERE))
        from targets import TARGETS

        for name in TARGETS:
            subprocess.run([sys.executable, __file__, name, *options], check=False)
        # Not by the exit status: under libFuzzer, DuckDB may fail while the process ends, after a run without a fault.
        broken = [name for name in TARGETS if any(path.stat().st_size for path in (HERE / "found" / name).glob("*"))]
        print(f"{len(TARGETS)} readers, broken: {', '.join(broken) or 'none'}")
        raise SystemExit(bool(broken))
    if target.startswith("-"):
        raise SystemExit(__doc__)
    fuzz(target, options)


def fuzz(target: str, options: list[str]) -> None:
    import atheris

    sys.path.insert(0, str(HERE))
    # torch is too large to be instrumented in sensible time, and the readers' own code is what is looked at.
    with atheris.instrument_imports(include=["flipguard", "targets"]):
        import targets

    found = HERE / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flipguard-corpus-") as fresh:
        arguments = [sys.argv[0], f"-artifact_prefix={found}/", "-rss_limit_mb=6000", "-timeout=60", *options]
        atheris.Setup(
            [*arguments, fresh, str(HERE / "corpus" / target)], lambda data: targets.one(target, data) and None
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
