"""Students, the references that they are held to, averages of weights, and the ensemble that answers as one network."""

from flipguard.ensembles.averages import MovingAverage, average_weights, interpolate, recompute_statistics
from flipguard.ensembles.batch import BatchEnsemble, batch_ensemble, check_folding, merge
from flipguard.ensembles.batch_student import BatchStudent
from flipguard.ensembles.branched import BranchedStudent
from flipguard.ensembles.combine import Combination, combined
from flipguard.ensembles.dealt import DealtReference, deal
from flipguard.ensembles.deep import DeepEnsemble
from flipguard.ensembles.joint import JointStudent, StaleStudent
from flipguard.ensembles.perturbations import Perturbation, as_perturbation
from flipguard.ensembles.prefetched import Prefetched, prefetchable
from flipguard.ensembles.quick import QuickReference, quickened
from flipguard.ensembles.references import (
    CachedReference,
    NetworkReference,
    OwnInputs,
    ViewedReference,
    extract_logits,
)
from flipguard.ensembles.spread import SpreadReference
from flipguard.ensembles.students import SingleStudent, decay_groups
from flipguard.ensembles.tempered import Tempered

__all__ = [
    "BatchEnsemble",
    "BatchStudent",
    "BranchedStudent",
    "CachedReference",
    "Combination",
    "DealtReference",
    "DeepEnsemble",
    "JointStudent",
    "MovingAverage",
    "NetworkReference",
    "OwnInputs",
    "Perturbation",
    "Prefetched",
    "QuickReference",
    "SingleStudent",
    "SpreadReference",
    "StaleStudent",
    "Tempered",
    "ViewedReference",
    "as_perturbation",
    "average_weights",
    "batch_ensemble",
    "check_folding",
    "combined",
    "deal",
    "decay_groups",
    "extract_logits",
    "interpolate",
    "merge",
    "prefetchable",
    "quickened",
    "recompute_statistics",
]
