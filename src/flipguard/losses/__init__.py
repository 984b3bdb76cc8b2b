"""Pure functions on logits or features, one number per sample (B,). The method weights, reduces once, names each term.

Half-precision logits are computed with in float32. References are not detached here: whether a side gets gradients is
the method's choice (co-distillation wants both).
"""

from flipguard.losses.adaptive import adaptive_weights, distillation_gradients
from flipguard.losses.bayesian import cost_ratio_target
from flipguard.losses.classification import cross_entropy
from flipguard.losses.compatibility import (
    contrastive_compatibility,
    fit_width,
    joint_cross_entropy,
    known_cross_entropy,
)
from flipguard.losses.dirichlet import proxy_concentration, proxy_dirichlet
from flipguard.losses.distillation import (
    focal_weight,
    kl_divergence,
    logit_matching,
    old_is_right,
    reverse_kl_divergence,
)
from flipguard.losses.entropy import divergence_from_uniform, prediction_entropy
from flipguard.losses.inhibition import Ranking, Reduction, kept_classes, logit_difference_inhibition
from flipguard.losses.symmetric import probability_distance, symmetric_kl_divergence

__all__ = [
    "Ranking",
    "Reduction",
    "adaptive_weights",
    "contrastive_compatibility",
    "cost_ratio_target",
    "cross_entropy",
    "distillation_gradients",
    "divergence_from_uniform",
    "fit_width",
    "focal_weight",
    "joint_cross_entropy",
    "kept_classes",
    "kl_divergence",
    "known_cross_entropy",
    "logit_difference_inhibition",
    "logit_matching",
    "old_is_right",
    "prediction_entropy",
    "probability_distance",
    "proxy_concentration",
    "proxy_dirichlet",
    "reverse_kl_divergence",
    "symmetric_kl_divergence",
]
