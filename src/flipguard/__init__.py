"""flipguard: measure, gate and prevent negative flips when a classifier is updated.

>>> import flipguard
>>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
>>> new = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 0, 0]}
>>> flipguard.compare(old, new).negative_flips
1
"""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily
from flipguard._version import __version__

if TYPE_CHECKING:
    from flipguard.comparison.chain import matrix as matrix
    from flipguard.comparison.gate import GateSettings as GateSettings
    from flipguard.comparison.result import Comparison as Comparison
    from flipguard.comparison.rewriting import rewrite as rewrite
    from flipguard.comparison.run import compare as compare
    from flipguard.metrics import Tally as Tally
    from flipguard.predictions import Predictions as Predictions
    from flipguard.predictions import read_predictions as read_predictions
    from flipguard.reports.html.page import report as report
    from flipguard.training.simple import fit as fit
    from flipguard.training.simple import predict as predict
    from flipguard.types import FlipguardError as FlipguardError
    from flipguard.types import InputError as InputError

_HOME = {
    "Comparison": "flipguard.comparison.result",
    "FlipguardError": "flipguard.types",
    "GateSettings": "flipguard.comparison.gate",
    "InputError": "flipguard.types",
    "Predictions": "flipguard.predictions",
    "Tally": "flipguard.metrics",
    "compare": "flipguard.comparison.run",
    "fit": "flipguard.training.simple",
    "matrix": "flipguard.comparison.chain",
    "predict": "flipguard.training.simple",
    "read_predictions": "flipguard.predictions",
    "report": "flipguard.reports.html.page",
    "rewrite": "flipguard.comparison.rewriting",
}

__all__ = [
    "Comparison",
    "FlipguardError",
    "GateSettings",
    "InputError",
    "Predictions",
    "Tally",
    "__version__",
    "compare",
    "fit",
    "matrix",
    "predict",
    "read_predictions",
    "report",
    "rewrite",
]


__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
