"""Fuzz the readers of files from elsewhere, one or all, each in a process of its own.

    make fuzz                                              every reader for half a minute
    python fuzz/run.py csv shards --seconds 60             with atheris, see the group `fuzz` in pyproject.toml

Inputs start from fuzz/corpus/TARGET. Those that reached code which nothing there had reached are put there, and the
tests go through them. What breaks a reader is left in fuzz/found/TARGET: mend the reader, and put the smallest such
file into the corpus, with a name that says what it is.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LARGEST = 5120
"""Bytes of an input. What breaks a reader does so on a small file, and a small corpus is read quickly."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("targets", nargs="*", help="all when none is named")
    options.add_argument("--seconds", type=int, default=30, help="for each reader")
    options.add_argument(
        "--out", type=Path, help="a JSON file; readers that it has and that are not run now stay in it"
    )
    given = options.parse_args()
    sys.path.insert(0, str(HERE))
    from targets import TARGETS

    unknown = sorted({*given.targets} - {*TARGETS})
    if unknown:
        raise SystemExit(f"there is no reader called {unknown[0]}: {', '.join(TARGETS)}")
    done = {}
    for target in given.targets or TARGETS:
        done[target] = fuzz(target, given.seconds)
        if given.out is not None:
            kept = json.loads(given.out.read_text()) if given.out.exists() else {}
            given.out.write_text(json.dumps(kept | done, indent=2) + "\n")
    broken = [target for target, facts in done.items() if facts["broken"]]
    print(f"{len(done)} readers, broken: {', '.join(broken) or 'none'}")
    raise SystemExit(bool(broken))


def fuzz(target: str, seconds: int) -> dict[str, int]:
    """Fuzz one reader, keep what reached new code; for how long, how often, its corpus by now, whether it broke."""
    corpus, found = HERE / "corpus" / target, HERE / "found" / target
    found.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flipguard-corpus-") as fresh:
        limits = [f"-max_len={LARGEST}", "-rss_limit_mb=6000", "-timeout=20", f"-artifact_prefix={found}/"]
        said = engine(target, f"-max_total_time={seconds}", "-print_final_stats=1", *limits, fresh, str(corpus))
        took = time.perf_counter() - began
        # By lines of code alone, not by how often each was run: that would keep a file for every length of a list.
        engine(target, "-merge=1", "-use_counters=0", *limits, str(corpus), fresh)
    executed = re.search(r"stat::number_of_executed_units: (\d+)", said)
    # Not by the exit status: under libFuzzer, DuckDB may fail while the process ends, after a run without a fault.
    broken = any(path.stat().st_size for path in found.iterdir())
    if broken or executed is None:
        print(said[-4000:], file=sys.stderr)
    facts = {
        "seconds": round(took),
        "executions": int(executed[1]) if executed else 0,
        "corpus": len(list(corpus.iterdir())),
        "broken": int(broken),
    }
    print(target, ", ".join(f"{name} {value:,}" for name, value in facts.items()), flush=True)
    return facts


def engine(target: str, *arguments: str) -> str:
    """What libFuzzer says."""
    command = [sys.executable, str(HERE / "engine.py"), target, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stderr


if __name__ == "__main__":
    main()
