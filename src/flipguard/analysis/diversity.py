"""How far the members of a student, and its teachers, disagree while it is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.ensembles.perturbations import Perturbation, evaluating
from flipguard.losses import cross_entropy
from flipguard.metrics.diversity import functional_diversity
from flipguard.training.state import Epoch
from flipguard.types import Batch, Reference, Student

SHOWN = {
    "train": "diversity of the members, train",
    "test": "diversity of the members, test",
    "nll": "test negative log-likelihood",
    "teachers_gain": "TDiv(x + ε) - TDiv(x)",
    "members_gain": "SDiv(x + ε) - SDiv(x)",
}


@dataclass(frozen=True)
class DiversityPoint:
    """After an epoch: the members' diversity on both parts, and the loss of the network that would be released.

    The gains are what the perturbation adds to the teachers' and to the members' diversity on the training samples (Eq.
    16 and 17); zero without one.
    """

    epoch: int
    train: float
    test: float
    nll: float
    teachers_gain: float
    members_gain: float


@dataclass
class DiversityRecord:
    """An `on_epoch` of `fit` that measures a student of several members after each epoch.

    Its `points` make a curve of `diversity_over_training`. The student is looked at in evaluation mode, by all of
    `train` and `test`: pass few batches where there are many.
    """

    student: Student
    teachers: Reference
    train: Sequence[Batch]
    test: Sequence[Batch]
    perturbation: Perturbation | None = None
    points: list[DiversityPoint] = field(default_factory=list)

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        with evaluating(self.student):
            moved = [self._moved(batch) for batch in self.train]
            before, after = self._members(self.train), self._members(moved)
            test = self._members(self.test)
        gained = self._teachers(moved) - self._teachers(self.train)
        loss = _loss(network, self.test)
        self.points.append(DiversityPoint(epoch.epoch, before, test, loss, gained, after - before))

    def _moved(self, batch: Batch) -> Batch:
        return batch if self.perturbation is None else self.perturbation(self.student, self.teachers, batch)

    def _members(self, batches: Sequence[Batch]) -> float:
        with torch.no_grad():
            return functional_diversity(torch.cat([self.student(batch.x).logits for batch in batches], dim=1))

    def _teachers(self, batches: Sequence[Batch]) -> float:
        with torch.no_grad():
            return functional_diversity(torch.cat([self.teachers(batch).logits for batch in batches], dim=1))


def _loss(network: nn.Module, batches: Sequence[Batch]) -> float:
    mode = network.training
    network.eval()
    with torch.no_grad():
        losses = torch.cat([cross_entropy(network(batch.x), batch.y) for batch in batches])
    network.train(mode)
    return float(losses.mean())


def diversity_over_training(records: Mapping[str, Sequence[DiversityPoint]]) -> Plot:
    """The members' diversity and the released network's loss after each epoch, and what a perturbation adds.

    LatentBE (Nam et al. 2022), Fig. 3 and 4: a curve for each perturbation that a student was trained with.
    """
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for name, title in SHOWN.items():
        series = [
            Series(record, floats(p.epoch for p in points), floats(getattr(p, name) for p in points))
            for record, points in records.items()
        ]
        panels.append(Panel("epoch", title, tuple(series)))
        facts |= {f"last {title}, {each.name}": each.y[-1] for each in series}
    return Plot("diversity", "Diversity over training", "LatentBE Fig. 3, 4", tuple(panels), facts)
