"""Figures of released networks themselves, on the data that they were trained on."""

from collections.abc import Mapping

from flipguard.analysis.interpolation import line_plot, loss_along_line
from flipguard.analysis.plots import Plot
from flipguard.analysis.runs import FinishedRun
from flipguard.data import Batches
from flipguard.releases import TrainSpec, load_release, material
from flipguard.releases.resolved import data_of
from flipguard.types import InputError

POINTS = tuple(step / 10 for step in range(-3, 14))
"""A little beyond both ends."""


def line_of_runs(runs: Mapping[str, FinishedRun]) -> Plot:
    """The line from each run's last version but one (t = 0) to its last (t = 1): LatentBE (Nam et al. 2022), Fig. 2.

    Whether there is a barrier between them says whether weights between them, as weight interpolation takes them, are
    any good. Both must be networks of one architecture.
    """
    lines = {}
    for name, run in runs.items():
        run.check_finished()
        if len(run.versions) < 2:
            raise InputError(f"{run.path} has one version: a line needs two.")
        first, second = (load_release(run.path, version).network for version in run.versions[-2:])
        spec = TrainSpec.model_validate(run.spec)
        plan = next(version for version in spec.versions or [] if version.name == run.versions[-1])
        data = material.load(data_of(spec, plan))
        batches = {
            part: list(Batches.asked(data.part(part), normalisation=data.normalisation)) for part in ("train", "test")
        }
        lines[name] = {part: loss_along_line(first, second, found, points=POINTS) for part, found in batches.items()}
    return line_plot(lines)
