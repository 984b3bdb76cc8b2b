"""Students, the references that they are held to, and the ensemble that answers as one network."""

from flipguard.ensembles.combine import Combination, combined
from flipguard.ensembles.deep import DeepEnsemble
from flipguard.ensembles.joint import JointStudent, StaleStudent
from flipguard.ensembles.prefetched import Prefetched, prefetchable
from flipguard.ensembles.quick import QuickReference, quickened
from flipguard.ensembles.references import CachedReference, NetworkReference, extract_logits
from flipguard.ensembles.students import SingleStudent, decay_groups

__all__ = [
    "CachedReference",
    "Combination",
    "DeepEnsemble",
    "JointStudent",
    "NetworkReference",
    "Prefetched",
    "QuickReference",
    "SingleStudent",
    "StaleStudent",
    "combined",
    "decay_groups",
    "extract_logits",
    "prefetchable",
    "quickened",
]
