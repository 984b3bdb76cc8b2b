"""Weights & Biases: figures, reports and release into a run, and a model artifact only when the gate says yes."""

import tempfile
from pathlib import Path
from typing import Any

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
from flipguard.types import InputError, MissingExtra

try:
    import wandb
except ModuleNotFoundError as error:
    raise MissingExtra(f"the W&B integration needs {error.name}: pip install 'flipguard[wandb]'") from error

PASSED = "gate-passed"


def log_comparison(comparison: Comparison, *, run: Any = None, page: str | Path | None = None) -> Any:
    """Figures and verdict into the run's summary, the reports as an artifact, which is returned.

    `run` is a W&B run, by default the current one; `page` the HTML report, where `flipguard.report` has written one.
    """
    run = _current(run)
    run.summary.update({f"{PREFIX}{name}": value for name, value in figures_of(comparison).items()})
    run.summary.update({f"{PREFIX}gate": verdict_of(comparison)})
    reports = wandb.Artifact(f"comparison-{run.id}", type="flipguard-comparison")
    with tempfile.TemporaryDirectory(prefix="flipguard-") as folder:
        for report in (*write_reports(comparison, Path(folder)), *([Path(page)] if page is not None else [])):
            reports.add_file(str(report))
        if page is not None:
            run.log({f"{PREFIX}report": wandb.Html(Path(page).read_text(encoding="utf-8"), inject=False)})
        run.log_artifact(reports)
    return reports


def log_run(folder: str | Path, *, run: Any = None, page: bool = True, release: bool = True) -> None:
    """A finished run folder: its spec as configuration, every epoch's figures, the last update's comparison.

    With `release` also the last version's files (weights, model.json, a tokenizer) as an artifact of type
    `flipguard-release`, whatever the gate says.
    """
    found, run = read_finished(folder), _current(run)
    run.config.update(found.parameters)
    for step, numbers in counted_epochs(found):
        run.log(numbers, step=step)
    with tempfile.TemporaryDirectory(prefix="flipguard-") as beside:
        log_comparison(found.comparison, run=run, page=page_of(found, Path(beside) / "report.html") if page else None)
        network = network_of(found, Path(beside) / "release") if release else None
        if network is not None:
            kept = wandb.Artifact(f"release-{run.id}", type="flipguard-release", metadata=_facts(found.comparison))
            kept.add_dir(str(network))
            run.log_artifact(kept)


def register_release(folder: str | Path, name: str, *, run: Any = None, registry: str | None = None) -> Any:
    """The last version of a run folder as a model artifact with the alias `gate-passed`, if its gate passed it.

    `registry` is where to link it besides, such as `wandb-registry-model/NAME` (that needs the server). Raises
    `GateRefused`, and logs nothing, when the gate refused or was not set.
    """
    found, run = read_finished(folder), _current(run)
    with tempfile.TemporaryDirectory(prefix="flipguard-") as beside:
        release = release_of(found, Path(beside) / "release")
        model = wandb.Artifact(name, type="model", metadata=_facts(found.comparison))
        model.add_dir(str(release))
        run.log_artifact(model, aliases=["latest", PASSED])
    if registry is not None:
        run.link_artifact(model, registry, aliases=[PASSED])
    return model


def register_model(path: str | Path, name: str, comparison: Comparison, *, run: Any = None) -> Any:
    """A file or folder of any model as a model artifact, if the gate passed its comparison."""
    require_passed(comparison)
    run, path = _current(run), Path(path)
    model = wandb.Artifact(name, type="model", metadata=_facts(comparison))
    (model.add_dir if path.is_dir() else model.add_file)(str(path))
    run.log_artifact(model, aliases=["latest", PASSED])
    return model


def _facts(comparison: Comparison) -> dict[str, Any]:
    sides = {side: getattr(comparison, side).version for side in ("old", "new")}
    return {"gate": verdict_of(comparison), **sides, **figures_of(comparison)}


def _current(run: Any) -> Any:
    run = run if run is not None else wandb.run
    if run is None:
        raise InputError("there is no W&B run to log to: call wandb.init first, or pass run=.")
    return run
