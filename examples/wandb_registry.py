"""Train an update, log it to Weights & Biases, and keep the new model as an artifact only if the gate says yes.

WANDB_MODE=offline python examples/wandb_registry.py
"""

import os
import tempfile
from pathlib import Path

import wandb

from flipguard.integrations.logged import GateRefused
from flipguard.integrations.wandb import log_run, register_release
from flipguard.releases import train
from flipguard.spec import parse_training_spec

SPEC = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 100, "per_class": 40},
    "old": {"model": {"name": "mlp", "hidden": [8]}},
    "new": {"model": {"name": "mlp", "hidden": [64]}},
    "method": {"name": "kd"},
    "train": {"epochs": 15, "batch_size": 50, "learning_rate": 0.1, "clip_norm": 5.0, "device": "cpu"},
    "gate": {"max_nfr": 0.1},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(parse_training_spec(SPEC), Path(folder) / "run")
        with wandb.init(project="flipguard", dir=os.environ.get("WANDB_DIR", folder)):
            log_run(Path(folder) / "run")
            try:
                model = register_release(Path(folder) / "run", "digits")
                print(f"kept {model.name} with {', '.join(sorted(model.manifest.entries))}")
            except GateRefused as refused:
                print(refused)


if __name__ == "__main__":
    main()
