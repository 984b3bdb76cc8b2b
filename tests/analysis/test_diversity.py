"""Diversity measured while a student of several members is trained."""

import pytest
import torch

from flipguard.analysis.diversity import SHOWN, DiversityRecord, diversity_over_training
from flipguard.analysis.interpolation import LinePoint, line_plot
from flipguard.data import Batches, load_data
from flipguard.ensembles import NetworkReference
from flipguard.ensembles.perturbations import Perturbation
from flipguard.methods import build_method
from flipguard.metrics import functional_diversity
from flipguard.models import build_model
from flipguard.training import Job, Recipe, fit


@pytest.mark.parametrize("kind", [None, "tdiv"])
def test_a_record_holds_each_epoch(kind: str | None) -> None:
    torch.set_num_threads(1)
    data = load_data("digits")
    recipe = Recipe(epochs=3, batch_size=128, learning_rate=0.05, clip_norm=1.0)

    def batches(epoch: int, start: int) -> Batches:
        norm = data.normalisation
        return Batches(data.train, 128, 0, epoch=epoch, epochs=3, start_step=start, drop_last=True, normalisation=norm)

    def build(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return build_model("mlp", classes=10, hidden=(11,))

    teachers = NetworkReference("ensemble", [build(1), build(2)])
    perturbation = None if kind is None else Perturbation("tdiv", size=0.1)
    method = build_method("latent_be", members=2, perturbation=perturbation)
    student = method.student(build, decay_all=True)
    test = list(Batches(data.test, 1024, normalisation=data.normalisation))
    record = DiversityRecord(student, teachers, test[:1], test, perturbation)
    released = fit(student, method, Job(batches, batches(0, 0).steps, recipe), {"ensemble": teachers}, on_epoch=record)
    assert [point.epoch for point in record.points] == [0, 1, 2]
    last = record.points[-1]
    with torch.no_grad():
        logits = torch.cat([student.ensemble.each(batch.x).logits for batch in test], dim=1)
        y = torch.cat([batch.y for batch in test])
        answers = torch.cat([released(batch.x) for batch in test])
    assert last.test == pytest.approx(functional_diversity(logits), rel=1e-4)
    assert last.nll == pytest.approx(float(torch.nn.functional.cross_entropy(answers, y)), rel=1e-4)
    assert last.test > 0
    # The perturbation goes where the teachers disagree more.
    assert (last.teachers_gain > 0) if kind else (last.teachers_gain == last.members_gain == 0)
    plot = diversity_over_training({"a": record.points})
    assert [panel.y for panel in plot.panels] == list(SHOWN.values())
    assert plot.panels[1].series[0].y[-1] == last.test


def test_the_lines_plot_has_the_parts_errors_and_the_last_ones_loss() -> None:
    line = [LinePoint(0.0, 0.1, 1.0), LinePoint(0.5, 0.4, 3.0), LinePoint(1.0, 0.3, 2.0)]
    train = [LinePoint(t, 0.0, 0.5) for t in (0.0, 0.5, 1.0)]
    plot = line_plot({"BE": {"train": train, "test": line}})
    assert [(panel.y, panel.series[0].y) for panel in plot.panels] == [
        ("train error", (0.0, 0.0, 0.0)),
        ("test error", (0.1, 0.4, 0.3)),
        ("test negative log-likelihood", (1.0, 3.0, 2.0)),
    ]
    assert plot.facts == {"barrier, BE": 1.5, "mean loss of the ends, BE": 1.5, "loss at t = 0.5, BE": 3.0}
