"""What happens to people, done to a real chain of updates: how many faults were tried, and how many it survived.

    python benchmarks/faults.py --kills 50 --out results/faults.json

A chain of three versions on digits, one of them with an ensemble, is trained once without a fault. Then it is killed
(`kill -9`) at random moments, each time started again by the same command, until it ends; it has survived when weights
and predictions are those of the unbroken run, bit for bit. Flipped bits are put into every kind of file, at random
places; they are survived when the file is named and `--repair` brings the same bits back.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from chain import flip_bit, flipguard, same_run, start, write_chain

FILES = ("versions/*/model.safetensors", "versions/*/predictions/*.parquet", "members/*/member.safetensors")
EPOCHS = "train.epochs=41"


def killed(folder: Path, whole: Path, kills: int, seconds: float, chance: random.Random) -> Iterator[dict[str, object]]:
    """One outcome per kill: a chain's kills are survived together, when its end is that of the unbroken run."""
    done = chain = 0
    while done < kills:
        run, mine = folder / f"run{chain}", 0
        while True:
            process = start(folder, "train", "chain.yaml", EPOCHS, "--out", run)
            if done + mine < kills:
                try:
                    process.communicate(timeout=chance.uniform(0.0, seconds))
                except Exception:
                    process.kill()
                    mine += 1
            _, complaint = process.communicate()
            if process.returncode != -9:
                break
        differs = complaint if process.returncode else same_run(whole, run)
        print(f"chain {chain}: killed {mine} times, {differs or 'the same bits'}", flush=True)
        yield from ({"fault": "kill -9", "survived": differs is None} for _ in range(mine))
        shutil.rmtree(run)
        done, chain = done + mine, chain + 1


def flipped(folder: Path, whole: Path, chance: random.Random) -> Iterator[dict[str, object]]:
    """A bit in a file of each kind."""
    for pattern in FILES:
        run = Path(shutil.copytree(whole, folder / "flipped"))
        path = chance.choice(sorted(run.glob(pattern)))
        flip_bit(path, chance.randrange(path.stat().st_size))
        mended = flipguard(folder, "train", "chain.yaml", EPOCHS, "--out", run, "--repair")
        differs = mended.stderr if mended.returncode else same_run(whole, run)
        print(f"a bit of {path.relative_to(run)}: {differs or 'the same bits'}", flush=True)
        yield {"fault": f"flipped bit, {pattern}", "survived": differs is None}
        shutil.rmtree(run)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="flipguard-") as place:
        folder = Path(place)
        write_chain(folder)
        began = time.perf_counter()
        whole = folder / "whole"
        unbroken = flipguard(folder, "train", "chain.yaml", EPOCHS, "--out", whole)
        if unbroken.returncode:
            raise SystemExit(unbroken.stderr)
        seconds = time.perf_counter() - began
        print(f"unbroken: {seconds:.1f} s", flush=True)
        outcomes = [*killed(folder, whole, given.kills, seconds, chance), *flipped(folder, whole, chance)]
    survived = sum(bool(outcome["survived"]) for outcome in outcomes)
    print(f"{len(outcomes)} faults tried, {survived} survived")
    if given.out is not None:
        kinds = sorted({str(outcome["fault"]) for outcome in outcomes})
        by_kind = {kind: [bool(one["survived"]) for one in outcomes if one["fault"] == kind] for kind in kinds}
        counts = {kind: {"tried": len(found), "survived": sum(found)} for kind, found in by_kind.items()}
        given.out.write_text(json.dumps({"seed": given.seed, "faults": counts}, indent=2) + "\n")
    if survived < len(outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
