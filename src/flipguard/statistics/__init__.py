"""Intervals, exact tests and sample sizes: pure functions of counts and sums, with no row of data in sight."""

from flipguard.statistics.calibration import expected_calibration_error_interval
from flipguard.statistics.combined import combined_shares
from flipguard.statistics.covariance import (
    clustered_covariance,
    effective_trials,
    linear_variance,
    multinomial_covariance,
    weighted_covariance,
)
from flipguard.statistics.interval import Floats, Interval
from flipguard.statistics.means import mean_interval
from flipguard.statistics.moderated import moderated_variance
from flipguard.statistics.noise import NoiseExcess, noise_excess, noise_floor
from flipguard.statistics.paired import (
    error_difference,
    error_difference_from_covariance,
    mcnemar_from_covariance,
    relative_negative_flip_rate,
    relative_negative_flip_rate_from_covariance,
)
from flipguard.statistics.power import samples_for_limit, samples_for_mcnemar
from flipguard.statistics.rates import clopper_pearson, clustered_rate, weighted_rate
from flipguard.statistics.significance import (
    Correction,
    adjust,
    benjamini_hochberg,
    holm,
    mcnemar_exact,
    simultaneous_confidence,
)

__all__ = [
    "Correction",
    "Floats",
    "Interval",
    "NoiseExcess",
    "adjust",
    "benjamini_hochberg",
    "clopper_pearson",
    "clustered_covariance",
    "clustered_rate",
    "combined_shares",
    "effective_trials",
    "error_difference",
    "error_difference_from_covariance",
    "expected_calibration_error_interval",
    "holm",
    "linear_variance",
    "mcnemar_exact",
    "mcnemar_from_covariance",
    "mean_interval",
    "moderated_variance",
    "multinomial_covariance",
    "noise_excess",
    "noise_floor",
    "relative_negative_flip_rate",
    "relative_negative_flip_rate_from_covariance",
    "samples_for_limit",
    "samples_for_mcnemar",
    "simultaneous_confidence",
    "weighted_covariance",
    "weighted_rate",
]
