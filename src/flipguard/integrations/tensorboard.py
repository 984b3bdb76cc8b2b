"""TensorBoard: a comparison's figures and its report, a run folder's epochs."""

import importlib.util
from pathlib import Path
from typing import Any

from flipguard.analysis.runs import read_finished
from flipguard.comparison import Comparison
from flipguard.integrations.logged import PREFIX, counted_epochs, figures_of, verdict_of
from flipguard.reports.markdown import comparison_markdown
from flipguard.types import MissingExtra


def log_comparison(writer: Any, comparison: Comparison, *, step: int = 0) -> None:
    """Scalars `flipguard/NAME`, and the Markdown report with the gate's verdict as text. `writer`: a SummaryWriter."""
    for name, value in figures_of(comparison).items():
        writer.add_scalar(f"{PREFIX}{name}", value, step)
    writer.add_text(f"{PREFIX}gate", verdict_of(comparison), step)
    writer.add_text(f"{PREFIX}report", comparison_markdown(comparison), step)
    writer.flush()


def log_run(folder: str | Path, log_dir: str | Path | None = None) -> Path:
    """A finished run folder into TensorBoard's files, by default in FOLDER/tensorboard; returns where they are."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("logging to TensorBoard needs tensorboard: pip install 'flipguard[track]'")
    from torch.utils.tensorboard import SummaryWriter

    run = read_finished(folder)
    place = Path(log_dir) if log_dir is not None else run.path / "tensorboard"
    with SummaryWriter(str(place)) as writer:
        last = 0
        for last, numbers in counted_epochs(run):
            for name, value in numbers.items():
                writer.add_scalar(name, value, last)
        writer.add_text(f"{PREFIX}spec", "\n".join(f"    {key}: {value}" for key, value in run.parameters.items()))
        log_comparison(writer, run.comparison, step=last)
    return place
