"""Every method of `flipguard methods` on one update of scikit-learn's digits, by specs.

    python recipes/methods_on_digits.py --seeds 0 1 2 3 4 --work WORK --out results/methods_on_digits
    python recipes/methods_on_digits.py --table results/methods_on_digits > results/methods_on_digits.md

32 hidden units are replaced by 128, in the setting of recipes/digits_update.yaml (60 epochs, ensembles of 4). Methods
that average weights need one architecture: they have an update of their own, from half of the data to all of it, with
`finetuned` (a share of 0 for the old weights) to compare with. Parameters are the methods' defaults, save for losses
whose paper's form sums over classes: as in `flipguard demo`, where they were chosen on other seeds, `fd_lm` and
`ensemble_fd` have a strength of 0.1, and `elodi` and `ldi` the sum itself. Nothing was tuned for this table, so it
ranks nobody: it shows what each method does out of the box where a thousand test samples can tell. No GPU; WORK holds
the run folders, and a run that is there is not trained again. OUT has a record per seed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from table import table

from flipguard.methods import METHODS
from flipguard.releases import train
from flipguard.spec import parse_training_spec

DATA = {"name": "digits", "test_size": 0.6, "validation": 100, "per_class": 40}
DATA["augment"] = {"crop_padding": 1, "flip": False}
TRAIN = {"epochs": 60, "batch_size": 50, "learning_rate": 0.1, "clip_norm": 5.0, "device": "cpu", "processes": 1}
MLP = {"name": "mlp"}
OPTIONS: dict[str, dict[str, Any]] = {
    "fd_lm": {"strength": 0.1},
    "ensemble_fd": {"strength": 0.1},
    "elodi": {"difference": {"reduction": "sum"}},
    "ldi": {"difference": {"reduction": "sum", "margin": 0.5}},
    "latent_be": {"members": 4},
    "batch_ensemble": {"members": 4},
}
AVERAGES = {
    "finetuned": {"name": "weight_interpolation", "alpha": 0.0},
    "weight_interpolation": {"name": "weight_interpolation", "alpha": "validation"},
    "soup": {"name": "soup", "ensemble": {"members": 3}},
}
TITLES = {"grown": "32 → 128 hidden units", "averaged": "32 hidden units, half of the data → all of it"}


def specs(seed: int) -> dict[str, dict[str, dict[str, Any]]]:
    """The spec of each treatment, by update."""
    grown: dict[str, dict[str, Any]] = {}
    for name, card in METHODS.items():
        if card.kind == "post-hoc":
            continue
        method = {"name": name, **OPTIONS.get(name, {})}
        if "ensemble" in card.references:
            method["ensemble"] = {"members": 4}
        grown[name] = {
            "data": DATA,
            "old": {"model": {**MLP, "hidden": [32]}},
            "new": {"model": {**MLP, "hidden": [128]}},
            "method": method,
            "train": TRAIN,
            "seed": seed,
        }
    averaged = {
        name: {
            "data": DATA,
            "old": {"model": {**MLP, "hidden": [32]}, "data": {"per_class": 20}},
            "new": {"model": {**MLP, "hidden": [32]}},
            "method": method,
            "train": TRAIN,
            "seed": seed,
        }
        for name, method in AVERAGES.items()
    }
    return {"grown": grown, "averaged": averaged}


def counts(found: Any) -> list[int]:
    """Both right, negative flip, positive flip, both wrong: equal, different."""
    wrong_old = round(float(found.error_rate_old) * found.n)
    changed = round(float(found.churn) * found.n)
    different = changed - found.negative_flips - found.positive_flips
    both_wrong = wrong_old - found.positive_flips
    right = found.n - wrong_old - found.negative_flips
    return [right, found.negative_flips, found.positive_flips, both_wrong - different, different]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--work", type=Path, default=Path("runs/methods_on_digits"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of these records, and train nothing")
    given = parser.parse_args()
    if given.table is not None:
        print("# Every method on digits")
        for update, title in TITLES.items():
            rows = table(given.table / update, "test")
            print(f"\n## {title}, 1,078 test samples\n\n{rows}")
        return
    for seed in given.seeds:
        for update, treatments in specs(seed).items():
            outcomes = {}
            for name, spec in treatments.items():
                spec["members"] = str(given.work / f"seed_{seed}" / "members")
                outcome = train(parse_training_spec(spec), given.work / f"seed_{seed}" / update / name)
                outcomes[name] = {"test": counts(outcome.comparisons[-1])}
                print(seed, update, name, outcomes[name], file=sys.stderr, flush=True)
            if given.out is not None:
                path = given.out / update / f"seed_{seed}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = ",\n".join(f' "{name}": {json.dumps(outcome)}' for name, outcome in outcomes.items())
                path.write_text(f'{{"seed": {seed}, "outcomes": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
