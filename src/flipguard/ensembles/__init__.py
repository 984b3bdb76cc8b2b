"""References: frozen predictors that a student is held to, and the ensemble that answers as one network."""

from flipguard.ensembles.combine import Combination, combined
from flipguard.ensembles.deep import DeepEnsemble
from flipguard.ensembles.references import CachedReference, NetworkReference, extract_logits

__all__ = ["CachedReference", "Combination", "DeepEnsemble", "NetworkReference", "combined", "extract_logits"]
