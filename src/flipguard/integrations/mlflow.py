"""MLflow: figures, reports and release into a run, and a model into the registry only when the gate says yes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flipguard._version import __version__
from flipguard.analysis.runs import read_finished
from flipguard.comparison import Comparison
from flipguard.integrations.logged import (
    PREFIX,
    counted_epochs,
    figures_of,
    network_of,
    page_of,
    release_of,
    require_passed,
    verdict_of,
    write_reports,
)
from flipguard.types import MissingExtra

try:
    import mlflow
except ModuleNotFoundError as error:
    raise MissingExtra(f"the MLflow integration needs {error.name}: pip install 'flipguard[mlflow]'") from error

LOADER = Path(__file__).with_name("mlflow_release.py")
AT_ONCE = 100
"""How many parameters MLflow takes in one request."""


def log_comparison(comparison: Comparison, *, page: str | Path | None = None) -> None:
    """Into the active run, or a new one: metrics `flipguard/NAME`, the verdict as a tag, the reports as artifacts.

    `page` is the HTML report, where `flipguard.report` has written one.
    """
    mlflow.log_metrics({f"{PREFIX}{name}": value for name, value in figures_of(comparison).items()})
    mlflow.set_tag("flipguard.gate", verdict_of(comparison))
    with tempfile.TemporaryDirectory(prefix="flipguard-") as folder:
        for report in write_reports(comparison, Path(folder)):
            mlflow.log_artifact(str(report), "flipguard")
    if page is not None:
        mlflow.log_artifact(str(page), "flipguard")


def log_run(folder: str | Path, *, page: bool = True, release: bool = True) -> str:
    """A finished run folder: its spec as parameters, every epoch's figures, the last update's comparison and report.

    With `release` also the last version's files (weights, model.json, a tokenizer) as artifacts, whatever the gate says
    and without registering them. Returns the id of the MLflow run: the active one, or a new one by the folder's name.
    """
    run = read_finished(folder)
    with _run(run.path.name) as logged, tempfile.TemporaryDirectory(prefix="flipguard-") as beside:
        for some in _chunks(run.parameters):
            mlflow.log_params(some)
        for step, numbers in counted_epochs(run):
            mlflow.log_metrics(numbers, step=step)
        log_comparison(run.comparison, page=page_of(run, Path(beside) / "report.html") if page else None)
        mlflow.log_artifact(str(run.path / "spec.yaml"), "flipguard")
        mlflow.log_artifact(str(run.path / "run.json"), "flipguard")
        network = network_of(run, Path(beside) / "release") if release else None
        if network is not None:
            mlflow.log_artifacts(str(network), "flipguard/release")
        return str(logged.info.run_id)


def register_model(model_uri: str, name: str, comparison: Comparison) -> Any:
    """A new version of a registered model, from any model that MLflow has, if the gate passed its comparison.

    Raises `GateRefused`, and registers nothing, when it did not or when there was no gate.
    """
    require_passed(comparison)
    return mlflow.register_model(model_uri, name, tags=_tags(comparison))


def register_release(folder: str | Path, name: str) -> Any:
    """The last version of a run folder as a registered model, if the run's gate passed it; returns the model version.

    It is stored as safetensors with the code that loads it, and no pickle. `mlflow.pyfunc.load_model` gives a model
    whose `predict` takes what the data set holds (images, features; texts as a list) and gives class probabilities.
    """
    run = read_finished(folder)
    with tempfile.TemporaryDirectory(prefix="flipguard-") as beside:
        release = release_of(run, Path(beside) / "release")
        with _run(run.path.name):
            logged = mlflow.pyfunc.log_model(
                name="release",
                python_model=str(LOADER),
                artifacts={"release": str(release)},
                pip_requirements=[f"flipguard[train]=={__version__}"],
            )
            return mlflow.register_model(logged.model_uri, name, tags=_tags(run.comparison))


def _tags(comparison: Comparison) -> dict[str, str]:
    rate = comparison.negative_flip_rate
    shown = "" if rate is None or rate.value is None else f"{rate.value:.6f}"
    versions = {f"flipguard.{side}": str(getattr(comparison, side).version or "") for side in ("old", "new")}
    return {"flipguard.gate": verdict_of(comparison), "flipguard.negative_flip_rate": shown, **versions}


def _chunks(parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    items = list(parameters.items())
    return (dict(items[first : first + AT_ONCE]) for first in range(0, len(items), AT_ONCE))


@contextmanager
def _run(name: str) -> Iterator[Any]:
    """The active run, or a new one that ends with the block."""
    active = mlflow.active_run()
    if active is not None:
        yield active
        return
    with mlflow.start_run(run_name=name) as started:
        yield started
