"""What the reader of a page has at hand: real files in a folder of their own, and the names that its Python uses."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "method": {"name": "kd"},
    "train": {"epochs": 3, "batch_size": 31, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}


def prepare(page: str, folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The environment of the commands and the namespace of the Python of a page."""
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    for place in ("bin", ".venv/bin"):
        (folder / place).mkdir(parents=True)
        for name, command in (("flipguard", "-m flipguard"), ("python", "")):
            script = folder / place / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
            script.chmod(0o755)
    for shared in ("recipes", "examples"):
        (folder / shared).symlink_to(ROOT / shared)
    _digits(folder)
    return environment, {"__name__": "__main__", **NAMES.get(page, lambda _: {})(folder)}


def _digits(folder: Path) -> None:
    """Predictions of scikit-learn's digits by two models and by copies of the first."""
    from sklearn.datasets import load_digits
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier

    from flipguard import Predictions

    data = load_digits()
    ids = np.arange(600, len(data.target))
    ink = np.where(data.data.sum(axis=1) < 300, "light", "heavy")[ids]
    rows = {"old": (GaussianNB(var_smoothing=1e-2), slice(0, 300)), "new": (KNeighborsClassifier(3), slice(0, 600))}
    rows |= {f"copy{k}": (GaussianNB(var_smoothing=1e-2), slice(20 * k, 300 + 20 * k)) for k in (1, 2)}
    for name, (model, train) in rows.items():
        model.fit(data.data[train], data.target[train])
        Predictions.from_arrays(
            id=ids,
            label=data.target[ids],
            prediction=model.predict(data.data[ids]),
            probabilities=model.predict_proba(data.data[ids]).astype(np.float32),
            classes=[str(c) for c in range(10)],
            slices={"ink": ink},
            model=name,
        ).write(folder / f"{name}.parquet")


def _readme(folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--out", "demo"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    _photos(folder)
    return {**_arrays(folder), **_networks(folder)}


def _photos(folder: Path) -> dict[str, Any]:
    from PIL import Image
    from sklearn.datasets import load_digits

    (folder / "photos").mkdir()
    for number, image in enumerate(load_digits().images[600:], 600):
        Image.fromarray((image * 15).astype(np.uint8)).save(folder / "photos" / f"{number}.png")
    return {}


def _arrays(folder: Path) -> dict[str, Any]:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 101)
    old, new = (random.normal(size=(101, 2)) + 3 * np.eye(2)[y] for _ in range(2))
    country = np.where(np.arange(101) % 2, "de", "at")
    given = {"ids": np.arange(101), "y": y, "country": country, "names": ["cat", "dog"], "logits": old}
    return {**given, "old_logits": old, "new_logits": new}


def _networks(folder: Path) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def network(width: int) -> nn.Module:
        torch.manual_seed(width)
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))

    x = torch.randn(101, 5, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(101))
    loaders = {"train_loader": DataLoader(rows, batch_size=31, shuffle=True)}
    loaders |= {name: DataLoader(rows, batch_size=31) for name in ("test_loader", "validation_loader")}
    return {"old_model": network(3), "new_model": network(7), "network": network(7), **loaders}


def _lightning(folder: Path) -> dict[str, Any]:
    import flipguard

    names = _networks(folder)
    flipguard.predict(names["old_model"], names["validation_loader"]).write(folder / "old.parquet")
    return {**names, "old_network": names["old_model"]}


def _transformers(folder: Path) -> dict[str, Any]:
    import runpy

    import transformers

    from flipguard import Predictions

    example = runpy.run_path(str(ROOT / "examples" / "transformers_update.py"))
    held, names = example["requests"](1, 53), list(example["KINDS"])
    ids, label = list(range(53)), [row["labels"] for row in held]
    Predictions.from_arrays(id=ids, label=label, prediction=label, classes=names).write(folder / "old.parquet")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True
    )
    networks = {"model": example["network"](12), "member_1": example["network"](12), "member_2": example["network"](12)}
    given = {"arguments": arguments, "rows": example["requests"](0, 53), "held": held, "ids_of_held": ids}
    return {**networks, **given, "names": names}


def _update(folder: Path) -> dict[str, Any]:
    """A finished run whose gate passed."""
    _train(folder / "runs" / "update", gate={"max_nfr": 0.9})
    return {}


def _runs(folder: Path) -> dict[str, Any]:
    for name, method in {"plain": "none", "focal": "fd_kl"}.items():
        _train(folder / "runs" / name, method={"name": method})
    for alpha in (0.2, 0.8):
        _train(folder / "runs" / f"alpha_{alpha}", method={"name": "kd", "alpha": alpha})
    for size in ("small", "large"):
        for k in range(8):
            (folder / f"{size}_{k}.parquet").symlink_to(folder / ("old.parquet" if size == "small" else "new.parquet"))
    return {}


def _train(folder: Path, **changes: Any) -> None:
    from flipguard.releases import train
    from flipguard.spec import parse_training_spec

    train(parse_training_spec({**SPEC, **changes}), folder)


NAMES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "README.md": _readme,
    "docs/figures.md": _runs,
    "docs/integrations/lightning.md": _lightning,
    "docs/integrations/mlflow.md": _update,
    "docs/integrations/transformers.md": _transformers,
    "docs/integrations/wandb.md": _update,
    "docs/prediction-file.md": _arrays,
    "docs/report.md": _photos,
}
