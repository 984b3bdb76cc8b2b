"""The comparison as one table expression: the same on DuckDB, Polars, Spark or whatever narwhals speaks to.

Two tables of (id, label, prediction) go in; counts per cell come out. A cell is the outcome of a sample together with
what is odd about it, so that one pass finds the figures *and* the faults: ids in one table only, labels that
contradict each other, predictions that are missing. Duplicate ids follow from the sums (see `duplicates`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw

ONLY_OLD, ONLY_NEW, CALIBRATION, OTHER_SPLIT = 7, 8, 9, 10
CONTRADICTION, MISSING_OLD, MISSING_NEW = 16, 32, 64
VALIDATION = ("validation", "valid", "val", "calibration")


@dataclass(frozen=True)
class Plan:
    """Which columns the two tables have besides id and prediction, and what to group by.

    `labels` says whose label rules: "agree" (both, and a contradiction is a fault), "old" or "new". `by` names slice
    columns (and the cluster column); each is taken from the new table where that has it, else from the old. With
    `scores` the joined rows also carry each table's column of that name (the logits or probabilities).
    """

    old_columns: frozenset[str]
    new_columns: frozenset[str]
    labels: str = "agree"
    by: tuple[str, ...] = ()
    split: str | None = None
    scores: bool = False

    def has(self, column: str) -> bool:
        return column in self.old_columns or column in self.new_columns

    @property
    def twice(self) -> tuple[str, ...]:
        """The columns to set aside or group by that both tables have, so that one overrules the other."""
        return tuple(c for c in ("split", *self.by) if c in self.old_columns and c in self.new_columns)


def joined(old: Any, new: Any, plan: Plan, *, differing: bool = False) -> nw.LazyFrame[Any]:
    """One row per id of either table: cell, label, old, new, weight and the columns to group by.

    `old` and `new` are native lazy tables with `id`, `prediction` and what `plan` says they have. `differing` adds, for
    each column of `plan.twice`, differs_NAME: 1 where the tables have two values of it, else null.
    """
    left = _prefixed(old, "old", plan.old_columns, plan)
    right = _prefixed(new, "new", plan.new_columns, plan)
    both = left.join(right, left_on="old_id", right_on="new_id", how="full")
    columns = {
        "id": nw.coalesce(nw.col("old_id"), nw.col("new_id")),
        "cell": _cell(plan),
        "label": _label(plan),
        "old": nw.col("old_prediction"),
        "new": nw.col("new_prediction"),
    }
    for name in ("weight", *plan.by):
        if plan.has(name):
            columns[name] = _either(name, plan)
    if plan.scores:
        columns |= {f"{side}_scores": nw.col(f"{side}_scores") for side in _score_sides(plan)}
    if differing:
        columns |= {f"differs_{name}": _differs(name) for name in plan.twice}
    return both.select(**columns)


def counts(old: Any, new: Any, plan: Plan, *, checked: bool = False) -> nw.LazyFrame[Any]:
    """The joined rows, counted by cell, label and `plan.by`: columns count, weight, weight_squared, example.

    `example` is the smallest id of a group; differs_NAME, for each column of `plan.twice`, is the number of rows of
    which the tables have two values, where the new one's would hold without a word. `checked` adds what a table that
    cannot be asked again must tell at once: unnamed, the rows without an id, and lightest, the smallest weight.
    """
    rows = joined(old, new, plan, differing=True)
    sums = [nw.len().alias("count"), nw.col("id").min().alias("example")]
    # Counted and not summed: DuckDB counts what is not null at nearly no cost.
    sums += [nw.col(f"differs_{name}").count() for name in plan.twice]
    if checked:
        rows = rows.with_columns(unnamed=_flag(nw.col("id").is_null(), 1))
        sums += [nw.col("unnamed").sum()]
        sums += [nw.col("weight").min().alias("lightest")] if plan.has("weight") else []
    if plan.has("weight"):
        rows = rows.with_columns(weight_squared=nw.col("weight") * nw.col("weight"))
        sums += [nw.col("weight").sum(), nw.col("weight_squared").sum()]
    return rows.group_by("cell", "label", *plan.by).agg(*sums)


def _prefixed(native: Any, prefix: str, columns: frozenset[str], plan: Plan) -> nw.LazyFrame[Any]:
    optional = ("label", "weight", "split", *(("scores",) if plan.scores else ()), *plan.by)
    kept = ["id", "prediction", *(c for c in optional if c in columns)]
    table: nw.LazyFrame[Any] = nw.from_native(native).lazy()
    return table.select(**{f"{prefix}_{c}": nw.col(c) for c in dict.fromkeys(kept)})


def _either(name: str, plan: Plan) -> nw.Expr:
    """The new table's value where it has one, else the old's."""
    sides = [s for s, c in (("new", plan.new_columns), ("old", plan.old_columns)) if name in c]
    value = nw.coalesce(*(nw.col(f"{s}_{name}") for s in sides)) if len(sides) > 1 else nw.col(f"{sides[0]}_{name}")
    return value.cast(nw.Float64()) if name == "weight" else value


def _differs(name: str) -> nw.Expr:
    return nw.when(nw.col(f"old_{name}") != nw.col(f"new_{name}")).then(nw.lit(1))


def _score_sides(plan: Plan) -> list[str]:
    return [s for s, c in (("old", plan.old_columns), ("new", plan.new_columns)) if "scores" in c]


def _label_sides(plan: Plan) -> list[str]:
    first = "new" if plan.labels == "new" else "old"
    order = (first, "old" if first == "new" else "new")
    have = {"old": plan.old_columns, "new": plan.new_columns}
    return [side for side in order if "label" in have[side]]


def _label(plan: Plan) -> nw.Expr:
    sides = _label_sides(plan)
    if not sides:
        return nw.lit(None, nw.Int64())
    columns = [nw.col(f"{side}_label") for side in sides]
    return nw.coalesce(*columns) if len(columns) > 1 else columns[0]


def _cell(plan: Plan) -> nw.Expr:
    """The outcome's code (0 to 6), or why the row is none, plus the flags of what is odd about it."""
    old, new = nw.col("old_prediction"), nw.col("new_prediction")
    same = (old == new) | (old.is_null() & new.is_null())
    codes: list[tuple[nw.Expr, int]] = [(nw.col("old_id").is_null(), ONLY_NEW), (nw.col("new_id").is_null(), ONLY_OLD)]
    if plan.has("split"):
        codes += _set_aside(plan)
    if _label_sides(plan):
        label = _label(plan)
        codes += [(label.is_null() & same, 5), (label.is_null(), 6)]
        codes += [((old == label) & (new == label), 0), (old == label, 1), (new == label, 2), (same, 3)]
        outcome = _first_true(codes, 4)
    else:
        outcome = _first_true([*codes, (same, 5)], 6)
    matched = ~nw.col("old_id").is_null() & ~nw.col("new_id").is_null()
    flags = _flag(old.is_null() & matched, MISSING_OLD) + _flag(new.is_null() & matched, MISSING_NEW)
    if plan.labels == "agree" and len(_label_sides(plan)) == 2:
        flags = flags + _flag(nw.col("old_label") != nw.col("new_label"), CONTRADICTION)
    if plan.has("split") or not _label_sides(plan):
        return outcome + flags
    return nw.when(_plainly_right(plan)).then(nw.lit(0)).otherwise(outcome + flags)


def _plainly_right(plan: Plan) -> nw.Expr:
    """Both predictions are the same and equal every label that there is: both_right, with nothing odd about the row.

    This follows from the rules of `_cell` and changes nothing in them. It comes first because most rows of a usable
    model end here, and DuckDB evaluates the other branch only for the rows that need it.
    """
    right = nw.col("old_prediction") == nw.col("new_prediction")
    for side in _label_sides(plan):
        right = right & (nw.col(f"{side}_prediction") == nw.col(f"{side}_label"))
    return right


def _set_aside(plan: Plan) -> list[tuple[nw.Expr, int]]:
    """Rows that are not compared: the validation split, which calibrates, and, with `plan.split`, every other split."""
    split = _either("split", plan)
    aside: list[tuple[nw.Expr, int]] = []
    if plan.split not in VALIDATION:
        aside.append((split.is_in(list(VALIDATION)), CALIBRATION))
    if plan.split is not None:
        aside.append((split.is_null() | (split != plan.split), OTHER_SPLIT))
    return aside


def _flag(condition: nw.Expr, value: int) -> nw.Expr:
    return nw.when(condition).then(nw.lit(value)).otherwise(nw.lit(0))


def _first_true(codes: Sequence[tuple[nw.Expr, int]], otherwise: int) -> nw.Expr:
    """CASE WHEN … THEN code … ELSE otherwise, built from the last condition inwards; an unknown condition is false."""
    result = nw.lit(otherwise)
    for condition, code in reversed(codes):
        result = nw.when(condition).then(nw.lit(code)).otherwise(result)
    return result


def duplicates(rows_old: int, rows_new: int, matched: int, only_old: int, only_new: int) -> tuple[bool, bool]:
    """Whether the old, and the new, table repeats an id that the other has.

    Say an id stands a times in old and b times in new: the join gives a·b rows. With unique ids matched + only_old is
    rows_old. In general it is Σ a·b + only_old against Σ a + only_old, equal exactly when every b is 1: a surplus on
    the old side shows a duplicate in *new*, and the other way round. No pass of its own is needed.

    >>> duplicates(rows_old=2, rows_new=3, matched=3, only_old=0, only_new=0)  # old: 1 2, new: 1 1 2
    (False, True)
    """
    return matched + only_new != rows_new, matched + only_old != rows_old
