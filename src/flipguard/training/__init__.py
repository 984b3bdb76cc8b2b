"""The loop, and what is trained in it."""

from flipguard.training.calibrate import calibrated
from flipguard.training.errors import TrainingError
from flipguard.training.job import Job
from flipguard.training.loop import Run, fit, take_turns
from flipguard.training.members import fit_members
from flipguard.training.model_spec import ModelSpec
from flipguard.training.network import Seeds, as_predictions, begin_network, predict_logits, train_network
from flipguard.training.recipe import Recipe
from flipguard.training.state import Epoch

__all__ = [
    "Epoch",
    "Job",
    "ModelSpec",
    "Recipe",
    "Run",
    "Seeds",
    "TrainingError",
    "as_predictions",
    "begin_network",
    "calibrated",
    "fit",
    "fit_members",
    "predict_logits",
    "take_turns",
    "train_network",
]
