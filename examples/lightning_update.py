"""Train an update under Lightning, held to the model in use, and watch its flips at every validation.

    python examples/lightning_update.py

The old network's predictions on the validation rows are a file, as a release leaves one; the new one is trained with
and without a method, and the flips are logged like any other metric.
"""

import tempfile
import warnings
from functools import partial
from pathlib import Path

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.integrations.lightning import FlipCallback, FlipModule


def main() -> None:
    warnings.filterwarnings("ignore", module="lightning")
    pixels, label = load_digits(return_X_y=True)
    x, y, row = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(label), torch.arange(len(label))
    train = DataLoader(TensorDataset(x[:600], y[:600], row[:600]), batch_size=50, shuffle=True)
    validation = DataLoader(TensorDataset(x[600:], y[600:], row[600:]), batch_size=200)
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)

    def network(width: int) -> nn.Module:
        lightning.seed_everything(width, verbose=False)
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def trained(module: FlipModule, *callbacks: lightning.Callback) -> lightning.Trainer:
        trainer = lightning.Trainer(
            max_epochs=10,
            accelerator="cpu",
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, train, validation)
        return trainer

    old = FlipModule(network(8), optimiser=sgd)
    trained(old)
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "old.parquet"
        flipguard.predict(old.release(), validation).write(said)
        for method in ("none", "kd"):
            new = FlipModule(network(64), method=method, old=old.release(), optimiser=sgd)
            logged = trained(new, FlipCallback(said)).callback_metrics
            print(
                f"{method}: error {logged['flips/error_rate_new']:.1%} (was {logged['flips/error_rate_old']:.1%}), "
                f"negative flip rate {logged['flips/negative_flip_rate']:.2%}"
            )


if __name__ == "__main__":
    main()
