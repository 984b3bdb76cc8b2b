"""The prediction file: what a model said about a data set, whoever wrote it."""

from flipguard.predictions.columns import RESERVED
from flipguard.predictions.fingerprint import fingerprint
from flipguard.predictions.read import read_predictions
from flipguard.predictions.table import Predictions

__all__ = ["RESERVED", "Predictions", "fingerprint", "read_predictions"]
