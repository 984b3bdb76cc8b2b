"""Two or more prediction files to comparisons; the gate."""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily

if TYPE_CHECKING:
    from flipguard.comparison.chain import matrix
    from flipguard.comparison.gate import GateSettings, judge
    from flipguard.comparison.result import Comparison, Figure, Figures, Gate, Group, Matrix, Rule, json_schema
    from flipguard.comparison.rewriting import Rewritten, rewrite
    from flipguard.comparison.run import compare

_RESULT = "flipguard.comparison.result"
_HOME = {
    **dict.fromkeys(("Comparison", "Figure", "Figures", "Gate", "Group", "Matrix", "Rule", "json_schema"), _RESULT),
    "GateSettings": "flipguard.comparison.gate",
    "Rewritten": "flipguard.comparison.rewriting",
    "compare": "flipguard.comparison.run",
    "judge": "flipguard.comparison.gate",
    "matrix": "flipguard.comparison.chain",
    "rewrite": "flipguard.comparison.rewriting",
}

__all__ = [
    "Comparison",
    "Figure",
    "Figures",
    "Gate",
    "GateSettings",
    "Group",
    "Matrix",
    "Rewritten",
    "Rule",
    "compare",
    "json_schema",
    "judge",
    "matrix",
    "rewrite",
]

__getattr__ = lazily(__name__, _HOME)
