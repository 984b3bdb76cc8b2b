"""Regression-alleviating compatible training: the old and the new model's classes compete for the new features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from flipguard.losses import contrastive_compatibility, cross_entropy, fit_width, joint_cross_entropy
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_choice, check_not_negative, check_smoothing
from flipguard.methods.heads import old_head, old_reference
from flipguard.methods.terms import labels_of, only_member, step
from flipguard.types import Batch, InputError, Reference, Step, Student

Form = Literal["classifier", "contrastive"]


@dataclass(frozen=True)
class RegressionAlleviating:
    """L = CE(W_new z, y) + λ·(the new feature nearer to its old positive than to any old or new negative). λ is
    `strength`. Zhang et al. 2022 (RACT).

    `form="classifier"`: the classes stand for the samples. CE of the 2C logits [W_old z̃ ; W_new z without class y], y
    among the first; samples of a class that the old model does not know count 0.
    `form="contrastive"`: the samples of the batch themselves, by the cosine of their features at temperature τ, the
    `hardest` 10 of other classes in each of the two sums. Where the widths differ the new features are cut or filled
    up as in BCT, among themselves too. This form alone needs the old model's forward pass. Its
    negatives are the batch's: with the recipe's `accumulate`, each part has only its own.
    """

    form: Form = "classifier"
    strength: float = 1.0
    temperature: float = 0.01
    hardest: int = 10
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_choice("form", self.form, get_args(Form))
        check_not_negative(strength=self.strength)
        check_above_zero(temperature=self.temperature)
        check_smoothing(self.label_smoothing)
        if self.hardest < 1:
            raise InputError(f"hardest must be at least 1, got {self.hardest}.")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        said = student(batch.x, features=True)
        mine = only_member(said.logits)
        assert said.features is not None
        compatibility = self._between_classes if self.form == "classifier" else self._between_samples
        terms = {
            "cross_entropy": (1.0, cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)),
            "compatibility": (self.strength, compatibility(said.features[0], mine, references, batch)),
        }
        return step(said.logits, terms)

    def _between_classes(
        self, features: Tensor, logits: Tensor, references: Mapping[str, Reference], batch: Batch
    ) -> Tensor:
        """(B, D), (B, C) -> (B,)."""
        head = old_head(references, logits.shape[-1])
        judged = head(fit_width(features, head.in_features))
        y = labels_of(references, "old", batch.y, logits.shape[-1])
        return joint_cross_entropy(judged, logits, y, batch.y)

    def _between_samples(
        self, features: Tensor, logits: Tensor, references: Mapping[str, Reference], batch: Batch
    ) -> Tensor:
        """(B, D), (B, C) -> (B,)."""
        with torch.no_grad():
            held = old_reference(references)(batch, features=True).features
        assert held is not None
        fitting = fit_width(features, held.shape[-1])
        return contrastive_compatibility(fitting, held[0], batch.y, temperature=self.temperature, hardest=self.hardest)


CARDS = (
    Card(
        name="ract",
        summary="Trains features that are nearer to the old model's right class than to any wrong one, old or new.",
        kind="objective",
        paper="Zhang et al. 2022 (RACT)",
        equation="-",
        training_cost="1, or 1 + 1/3",
        references=("old",),
        factory=RegressionAlleviating,
        departures={
            "cached": "the old model's head or features are needed, and stored logits have none",
            "agreement": "new features are drawn to the old class of their label, not to what the old model said",
        },
    ),
)
