"""Co-distillation with stale peers: each network is held to what the others said some updates ago."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flipguard.ensembles import StaleStudent
from flipguard.losses import cross_entropy, kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_not_negative, check_shares, check_smoothing
from flipguard.methods.codistillation import check_members, joint_step, members_of
from flipguard.methods.ramps import step_ramp
from flipguard.types import Batch, InputError, Reference, Step


@dataclass(frozen=True)
class StaleCoDistillation:
    """L_i = CE_i + β·KL(f_j(w_j from before) ‖ f_i) for each network i and its peers j: Anil et al. 2018.

    Eq. 17 of Bhojanapalli et al. 2021 (churn), whose gradient is that of Eq. 18's cross-entropy; no gradient crosses
    from one network to another. β acts after the share `burn_in` of training, all at once. Several peers count by their
    mean.

    Departures: the peers' copies are all taken after every `every`-th update, so that they are up to that old rather
    than always exactly T updates; the networks see the same batch, where Anil et al. give each its own stream of data.
    Neither paper's T nor burn-in carries over to other data: `every` and `burn_in` are plain choices. `clip_norm`, if a
    recipe sets it, looks at all networks together. The default β is 1, as for `codistill_skl`, and for its reason: the
    paper's, in the card's `settings`, showed no effect.
    """

    beta: float = 1.0
    members: int = 2
    every: int = 50
    burn_in: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(beta=self.beta)
        check_shares(burn_in=self.burn_in)
        check_members(self.members)
        check_smoothing(self.label_smoothing)
        if self.every < 1:
            raise InputError(f"every must be at least 1 update, got {self.every}.")

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def student(self, build: Callable[[int], nn.Module], *, decay_all: bool) -> StaleStudent:
        """One network from each of the run's first initialisations, and its copy."""
        networks = [build(member) for member in range(self.members)]
        return StaleStudent(networks, every=self.every, decay_all=decay_all)

    def __call__(self, student: Any, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        said = members_of(logits, self.members)
        before = student.stale_logits(batch.x).to(logits.dtype).unbind(0)
        pulls = [
            kl_divergence(said[i], before[j], temperature=1.0)
            for i in range(self.members)
            for j in range(self.members)
            if i != j
        ]
        terms = {
            "disagreement": (
                self.beta * step_ramp(batch.progress, self.burn_in),
                torch.stack(pulls).sum(0) / (self.members - 1),
            )
        }
        return joint_step(
            logits, [cross_entropy(m, batch.y, label_smoothing=self.label_smoothing) for m in said], terms
        )


CARDS = (
    Card(
        name="codistill_ce",
        summary="Trains networks together, each drawn to older copies of the others; releases one.",
        kind="objective",
        paper="Anil et al. 2018; Bhojanapalli et al. 2021 (churn)",
        equation="17, 18",
        training_cost="4m/3",
        factory=StaleCoDistillation,
        settings={
            "cifar10": {"beta": 0.01},
            "cifar100": {"beta": 0.04},
            "imagenet": {"beta": 0.02},
            "inaturalist": {"beta": 0.02},
            "svhn": {"beta": 0.02},
        },
    ),
)
