"""Two or more prediction files to comparisons; the gate."""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily

if TYPE_CHECKING:
    from flipguard.comparison.chain import matrix
    from flipguard.comparison.gate import GateSettings, judge
    from flipguard.comparison.result import Comparison, Figure, Figures, Gate, Group, Matrix, Rule, json_schema
    from flipguard.comparison.run import compare

_RESULT = "flipguard.comparison.result"
_HOME = {
    **dict.fromkeys(("Comparison", "Figure", "Figures", "Gate", "Group", "Matrix", "Rule", "json_schema"), _RESULT),
    "GateSettings": "flipguard.comparison.gate",
    "compare": "flipguard.comparison.run",
    "judge": "flipguard.comparison.gate",
    "matrix": "flipguard.comparison.chain",
}

__all__ = [
    "Comparison",
    "Figure",
    "Figures",
    "Gate",
    "GateSettings",
    "Group",
    "Matrix",
    "Rule",
    "compare",
    "json_schema",
    "judge",
    "matrix",
]

__getattr__ = lazily(__name__, _HOME)
