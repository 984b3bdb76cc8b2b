"""The loop, and what is trained in it."""

from flipguard.training.errors import TrainingError
from flipguard.training.loop import Job, fit
from flipguard.training.members import fit_members
from flipguard.training.network import ModelSpec, Seeds, as_predictions, predict_logits, train_network
from flipguard.training.recipe import Recipe
from flipguard.training.state import Epoch

__all__ = [
    "Epoch",
    "Job",
    "ModelSpec",
    "Recipe",
    "Seeds",
    "TrainingError",
    "as_predictions",
    "fit",
    "fit_members",
    "predict_logits",
    "train_network",
]
