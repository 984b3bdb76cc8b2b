"""What happens to people, done to a real chain of updates: how many faults were tried, and how many it survived.

    python benchmarks/faults.py --kills 50 --out results/faults.json
    python benchmarks/faults.py --only "full disk" --tries 5 --out results/faults.json      other kinds stay in the file

A chain of three versions on digits, one of them with an ensemble, is trained once without a fault. Then it is killed
(`kill -9`) at random moments, each time started again by the same command, until it ends; it has survived when weights
and predictions are those of the unbroken run, bit for bit. The other kinds are the scenarios of tests/faults, which
says what each does and what it takes to survive it; what differs from try to try is the moment or the place.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from chain import flipguard, same_run, start, write_chain
from scenarios import SCENARIOS, NotAllowed

KILL = "kill -9"
EPOCHS = "train.epochs=41"


def killed(folder: Path, kills: int, chance: random.Random, facts: dict[str, float]) -> Iterator[bool]:
    """One outcome per kill: a chain's kills are survived together, when its end is that of the unbroken run.

    Its chain is longer than that of the scenarios, and no kill comes before its start has had the time that one takes
    which trains nothing, so that most kills find it at work.
    """
    began = time.perf_counter()
    whole = unbroken(folder, EPOCHS)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    flipguard(folder, "train", "chain.yaml", EPOCHS, "--dry-run")
    ready = time.perf_counter() - began
    facts |= {"unbroken_seconds": round(seconds, 1), "start_seconds": round(ready, 1)}
    print(f"unbroken: {seconds:.1f} s; a start that trains nothing: {ready:.1f} s", flush=True)
    done = chain = 0
    while done < kills:
        run, mine = folder / f"run{chain}", 0
        while True:
            process = start(folder, "train", "chain.yaml", EPOCHS, "--out", run)
            if done + mine < kills:
                try:
                    process.communicate(timeout=chance.uniform(ready, max(ready, seconds)))
                except TimeoutExpired:
                    process.kill()
                    mine += 1
            _, complaint = process.communicate()
            if process.returncode != -9:
                break
        differs = complaint if process.returncode else same_run(whole, run)
        print(f"chain {chain}: killed {mine} times, {differs or 'the same bits'}", flush=True)
        yield from [differs is None] * mine
        shutil.rmtree(run)
        done, chain = done + mine, chain + 1


def happened(name: str, folder: Path, tries: int, chance: random.Random) -> Iterator[bool]:
    """One outcome per try of a scenario; none where this machine does not let us bring it about."""
    whole = folder / "whole" if (folder / "whole").exists() else unbroken(folder)
    for attempt in range(tries):
        place = folder / f"try{attempt}"
        place.mkdir()
        try:
            SCENARIOS[name](place, whole, chance)
        except NotAllowed as reason:
            print(f"{name}: not tried, {reason}", flush=True)
            return
        except Exception as error:
            # What was counted before stays: a scenario that breaks has not been survived.
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            yield False
        else:
            yield True
        finally:
            shutil.rmtree(place, ignore_errors=True)


def unbroken(folder: Path, *changes: str) -> Path:
    """The run folder of a chain that nothing happened to."""
    write_chain(folder)
    whole = folder / "-".join(("whole", *changes))
    done = flipguard(folder, "train", "chain.yaml", *changes, "--out", whole)
    if done.returncode:
        raise SystemExit(done.stderr)
    return whole


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--tries", type=int, default=3, help="of every other kind")
    options.add_argument("--only", nargs="+", choices=[KILL, *SCENARIOS], default=[KILL, *SCENARIOS], metavar="KIND")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    counts: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="flipguard-") as place:
        for kind in given.only:
            # By its own name, so that a kind does the same whichever others are asked for.
            chance = random.Random(f"{given.seed} {kind}")
            facts: dict[str, float] = {}
            if kind == KILL:
                outcomes = list(killed(Path(place), given.kills, chance, facts))
            else:
                outcomes = list(happened(kind, Path(place), given.tries, chance))
            if outcomes:
                counts[kind] = {"tried": len(outcomes), "survived": sum(outcomes), "seed": given.seed, **facts}
    for kind, count in counts.items():
        print(f"{kind:36} {count['tried']:3} tried {count['survived']:3} survived")
    tried, survived = (sum(count[what] for count in counts.values()) for what in ("tried", "survived"))
    print(f"{tried} faults tried, {survived} survived")
    if given.out is not None:
        before = json.loads(given.out.read_text())["faults"] if given.out.exists() else {}
        kept = {kind: count for kind, count in before.items() if kind in SCENARIOS or kind == KILL}
        given.out.write_text(json.dumps({"faults": kept | counts}, indent=2) + "\n")
    if survived < tried:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
