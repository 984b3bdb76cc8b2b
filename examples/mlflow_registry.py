"""Train an update, log it to MLflow, and register the new version only if the gate says yes.

    python examples/mlflow_registry.py [--uri sqlite:///mlflow.db]

Without a URI everything goes to a SQLite file in a temporary folder.
"""

import argparse
import tempfile
from pathlib import Path

import mlflow

from flipguard.integrations.logged import GateRefused
from flipguard.integrations.mlflow import log_run, register_release
from flipguard.releases import train
from flipguard.spec import parse_training_spec

SPEC = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 100, "per_class": 40},
    "old": {"model": {"name": "mlp", "hidden": [8]}},
    "new": {"model": {"name": "mlp", "hidden": [64]}},
    "method": {"name": "kd"},
    "train": {"epochs": 15, "batch_size": 50, "learning_rate": 0.1, "clip_norm": 5.0, "device": "cpu"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uri")
    uri = parser.parse_args().uri
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(uri or f"sqlite:///{folder}/mlflow.db")
        if uri is None:
            mlflow.create_experiment("flipguard", artifact_location=(Path(folder) / "artifacts").as_uri())
        mlflow.set_experiment("flipguard")
        for name, limit in (("careful", 0.001), ("usual", 0.1)):
            run = Path(folder) / name
            train(parse_training_spec({**SPEC, "gate": {"max_nfr": limit}}), run)
            log_run(run)
            try:
                version = register_release(run, "digits").version
                print(f"max_nfr {limit}: registered as version {version} of digits")
            except GateRefused as refused:
                print(f"max_nfr {limit}: {refused}")


if __name__ == "__main__":
    main()
