"""Train an update, log its epochs, figures and report to TensorBoard's files, and read back what the gate says of it.

python examples/tensorboard_logging.py && tensorboard --logdir logs
"""

import argparse
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flipguard.integrations.tensorboard import log_run
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="where TensorBoard's files go")
    logs = parser.parse_args().logs
    with tempfile.TemporaryDirectory() as folder:
        train(parse_training_spec(SPEC), Path(folder) / "run")
        log_run(Path(folder) / "run", logs)
    events = EventAccumulator(str(logs))
    events.Reload()
    (rate,) = events.Scalars("flipguard/negative_flip_rate")
    (verdict,) = events.Tensors("flipguard/gate/text_summary")[0].tensor_proto.string_val
    epochs = events.Scalars("new/error_rate_new")
    print(
        f"{logs} holds {len(epochs)} epochs, a negative flip rate of {rate.value:.2%}, and the gate: {verdict.decode()}"
    )


if __name__ == "__main__":
    main()
