"""Two or more prediction files to comparisons; the gate."""

from flipguard.comparison.chain import matrix
from flipguard.comparison.gate import GateSettings, judge
from flipguard.comparison.result import Comparison, Figure, Figures, Gate, Group, Matrix, Rule, json_schema
from flipguard.comparison.run import compare

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
