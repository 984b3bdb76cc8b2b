"""Every epoch's figures to TensorBoard, MLflow or Weights & Biases, through accelerate's trackers."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flipguard._nearest import nearest
from flipguard.releases.folder import deciding, simple
from flipguard.releases.listener import Listener
from flipguard.training.distributed import place
from flipguard.types import InputError, MissingExtra

TRACKERS: dict[str, Callable[[Any, Path], Any]] = {
    "tensorboard": lambda room, folder: room.TensorBoardTracker("tensorboard", folder),
    "mlflow": lambda room, folder: room.MLflowTracker("flipguard", run_name=folder.name),
    "wandb": lambda room, folder: room.WandBTracker("flipguard", name=folder.name),
}
"""TensorBoard's files lie in the run folder; where the others keep theirs, their own environment variables say."""


def tracker(name: str) -> "Tracking":
    """A listener that logs to the tracker of that name."""
    if name not in TRACKERS:
        raise InputError(f"there is no tracker '{name}'{nearest(name, TRACKERS)}")
    for library in ("accelerate", name):
        if importlib.util.find_spec(library) is None:
            further = "" if library in ("accelerate", "tensorboard") else f" {library}"
            raise MissingExtra(f"tracking with {name} needs {library}: pip install 'flipguard[track]'{further}")
    return Tracking(name)


class Tracking(Listener):
    """A tracker's run for each run folder: the resolved spec as its configuration, figures by version.

    Steps are epochs, counted through the versions in order, as some trackers take no step twice. A run in which nothing
    is trained leaves no trace.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._run: Any = None
        self._folder, self._spec = Path(), {}  # type: Path, Mapping[str, Any]
        self._before: dict[str, int] = {}

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        self.close()
        self._folder, self._spec = Path(folder), spec
        epochs = 0
        for version in spec["versions"]:
            self._before[version["name"]] = epochs
            epochs += version.get("train", {}).get("epochs", 0)

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        if self._run is None:
            self._run = self._started()

    def _started(self) -> Any:
        room = importlib.import_module("accelerate.tracking")
        if place()[1] == 1:
            # Its log lines ask which process this is; under a launcher the training team has said so.
            importlib.import_module("accelerate.state").PartialState()
        try:
            run = TRACKERS[self._name](room, self._folder)
            run.start()
            run.store_init_configuration({key: simple(value) for key, value in deciding(self._spec).items()})
        except Exception as error:
            # Each tracker has errors of its own; a run that was to be tracked must not start untracked.
            raise InputError(f"{self._name} cannot be logged to: {' '.join(str(error).split())[:200]}") from error
        return run

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        self._run.log(epoch_numbers(version, figures), step=self._before[version] + figures["epoch"])

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def epoch_numbers(version: str, figures: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl as a tracker takes it: numbers by name, after the version's.

    >>> epoch_numbers("new", {"epoch": 0, "epochs": 3, "part": "test", "terms": {"kd": 2.0}, "error_rate_new": 0.5})
    {'new/epoch': 0.0, 'new/error_rate_new': 0.5, 'new/loss/kd': 2.0}
    """
    told = {**figures, **{f"loss/{name}": value for name, value in figures["terms"].items()}}
    return {
        f"{version}/{name}": float(value)
        for name, value in told.items()
        if isinstance(value, int | float) and name != "epochs"
    }
