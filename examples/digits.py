"""Compare two real models on scikit-learn's bundled digits, as a release manager would.

    python examples/digits.py --out demo

An old model (8 hidden units) is to be replaced by a new one (64 hidden units). Both are trained here, in a few
seconds; so are four more copies of the old one from other seeds, which show how many samples flip by retraining alone.
Everything after training works on the prediction files: the commands that are run are printed first.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from flipguard import Predictions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"))
    folder = parser.parse_args().out
    digits = load_digits()
    pixels, label, ids = digits.data / 16.0, digits.target, np.arange(len(digits.target))
    train, rest = train_test_split(ids, train_size=600, stratify=label, random_state=0)
    brightness = pixels.mean(axis=1)
    thirds = np.digitize(brightness, np.quantile(brightness, [1 / 3, 2 / 3]))
    ink = np.array(["light", "medium", "heavy"])[thirds]
    split = np.where(np.arange(len(rest)) < 300, "validation", "test")

    copies = [f"old_{seed + 1}" for seed in range(1, 5)]
    wanted = [("old", 8, 0), *((name, 8, seed) for seed, name in enumerate(copies, 1)), ("new", 64, 0)]
    for file, units, seed in wanted:
        model = MLPClassifier((units,), max_iter=400, learning_rate_init=0.01, random_state=seed)
        model.fit(pixels[train], label[train])
        predictions = Predictions.from_arrays(
            id=[f"digit_{i:05d}" for i in rest],
            label=label[rest],
            probabilities=model.predict_proba(pixels[rest]).astype(np.float32),
            split=split,
            slices={"ink": ink[rest]},
            classes=[str(name) for name in digits.target_names],
            model=f"mlp-{units}",
            version=f"seed {seed}",
        )
        predictions.write(folder / f"{file}.parquet")

    old, new = str(folder / "old.parquet"), str(folder / "new.parquet")
    noise = [str(folder / f"{name}.parquet") for name in copies]
    saved = ["--json", str(folder / "comparison.json"), "--markdown", str(folder / "comment.md")]
    commands = (
        ["compare", old, new, "--noise", *noise, "--max-nfr", "0.01", *saved],
        ["matrix", old, *noise[:1], new],
    )
    for command in commands:
        print(f"\n$ flipguard {shlex.join(command)}\n", flush=True)
        code = subprocess.run([sys.executable, "-m", "flipguard", *command], check=False).returncode
        if code > 1:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
