"""A real MLflow on SQLite: what is logged, and what gets into the registry."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import numpy as np
import pytest

from flipguard.analysis.runs import read_finished
from flipguard.integrations.logged import GateRefused, figures_of
from flipguard.integrations.mlflow import log_comparison, log_run, register_model, register_release
from flipguard.releases import load_release
from flipguard.releases.material import load
from flipguard.releases.plan import DataPlan

Folder = Callable[[str], Path]


# MLflow's own, about SQLAlchemy and about models without a signature.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

OWN = """
import mlflow

class Own(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input

mlflow.models.set_model(Own())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data base for all tests, as MLflow takes seconds to make one."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    return folder


@pytest.fixture(autouse=True)
def store(place: Path, request: pytest.FixtureRequest) -> Iterator[mlflow.MlflowClient]:
    """An experiment of the test's own."""
    mlflow.create_experiment(request.node.name, artifact_location=(place / request.node.name).as_uri())
    mlflow.set_experiment(request.node.name)
    yield mlflow.MlflowClient()
    while mlflow.active_run() is not None:
        mlflow.end_run()


def artifacts(store: mlflow.MlflowClient, run_id: str) -> set[str]:
    return {Path(found.path).name for found in store.list_artifacts(run_id, "flipguard")}


def test_a_run_folder_is_logged_whole(store: mlflow.MlflowClient, run_folder: Folder) -> None:
    run_id = log_run(run_folder("passed"))
    logged, run = store.get_run(run_id), read_finished(run_folder("passed"))
    assert logged.info.status == "FINISHED"
    assert logged.data.params["versions.new.method.name"] == "kd"
    assert logged.data.params.keys() == run.parameters.keys()
    for name, value in figures_of(run.comparison).items():
        assert logged.data.metrics[f"flipguard/{name}"] == pytest.approx(value), name
    history = store.get_metric_history(run_id, "new/negative_flip_rate")
    assert [point.step for point in history] == [3, 4, 5]
    assert logged.data.tags["flipguard.gate"] == "passed"
    reports = {"comparison.json", "comparison.md", "comparison.xml", "report.html", "spec.yaml", "run.json"}
    assert artifacts(store, run_id) == {*reports, "release"}


@pytest.mark.parametrize("verdict", ["passed", "refused", "not judged"])
def test_a_release_is_logged_whatever_the_gate_says_and_not_registered(
    store: mlflow.MlflowClient, run_folder: Folder, tmp_path: Path, verdict: str
) -> None:
    folder, registered = run_folder(verdict), len(store.search_model_versions())
    run_id = log_run(folder, page=False)
    there = Path(mlflow.artifacts.download_artifacts(f"runs:/{run_id}/flipguard/release", dst_path=str(tmp_path)))
    assert {path.name for path in there.iterdir()} == {"model.json", "model.safetensors"}
    for path in there.iterdir():
        assert path.read_bytes() == (folder / "versions" / "new" / path.name).read_bytes()
    assert len(store.search_model_versions()) == registered
    assert "release" not in artifacts(store, log_run(folder, page=False, release=False))


def test_a_comparison_goes_into_the_active_run(store: mlflow.MlflowClient, run_folder: Folder) -> None:
    comparison = read_finished(run_folder("refused")).comparison
    with mlflow.start_run() as run:
        log_comparison(comparison)
    logged = store.get_run(run.info.run_id)
    assert logged.data.tags["flipguard.gate"] == "refused"
    assert artifacts(store, run.info.run_id) == {"comparison.json", "comparison.md", "comparison.xml"}


def test_a_release_that_passed_is_registered_and_says_what_the_run_said(
    store: mlflow.MlflowClient, run_folder: Folder
) -> None:
    folder = run_folder("passed")
    registered = register_release(folder, "digits")
    found = store.get_model_version("digits", registered.version)
    assert found.tags["flipguard.gate"] == "passed"
    assert found.tags["flipguard.new"] == "new"
    served = mlflow.pyfunc.load_model(f"models:/digits/{registered.version}")
    release, data = load_release(folder), load(DataPlan(**read_finished(folder).spec["data"]))
    pixels = data.test.x[:101].numpy()
    said = served.predict(pixels)
    assert list(said.columns) == list(release.classes)
    logits = release.logits(data)[:101]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(said.to_numpy(), exponentials / exponentials.sum(axis=1, keepdims=True), atol=1e-6)


def test_no_pickle_is_stored(place: Path, run_folder: Folder, request: pytest.FixtureRequest) -> None:
    register_release(run_folder("passed"), "digits")
    names = {path.name for path in (place / request.node.name).rglob("*") if path.is_file()}
    assert {"model.safetensors", "model.json", "mlflow_release.py"} <= names
    assert not {name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth"))}


@pytest.mark.parametrize("verdict", ["refused", "not judged"])
def test_what_did_not_pass_is_not_registered(
    store: mlflow.MlflowClient, run_folder: Folder, verdict: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(GateRefused):
        register_release(run_folder(verdict), "refused")
    with pytest.raises(GateRefused):
        register_model("models:/anything", "refused", read_finished(run_folder(verdict)).comparison)
    assert store.search_registered_models("name = 'refused'") == []
    assert store.search_runs([mlflow.get_experiment_by_name(request.node.name).experiment_id]) == []


def test_any_model_of_mlflow_is_registered_by_its_comparison(
    store: mlflow.MlflowClient, run_folder: Folder, tmp_path: Path
) -> None:
    comparison = read_finished(run_folder("passed")).comparison
    own = tmp_path / "own.py"
    own.write_text(OWN)
    with mlflow.start_run():
        logged = mlflow.pyfunc.log_model(name="own", python_model=str(own))
    registered = register_model(logged.model_uri, "own", comparison)
    assert store.get_model_version("own", registered.version).tags["flipguard.gate"] == "passed"
