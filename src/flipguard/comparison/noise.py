"""The noise floor: the flips that retraining alone causes."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from flipguard import statistics
from flipguard.comparison.classes import Side, Value, Vocabulary
from flipguard.comparison.engine import check_scores, coded_table, describe, register
from flipguard.comparison.expression import joined
from flipguard.comparison.result import Figure, Noise
from flipguard.comparison.sources import Sources
from flipguard.predictions import Predictions
from flipguard.predictions.columns import plain_type
from flipguard.types import InputError

_UNKNOWN = -2


def refuse_itself(copies: Sequence[Predictions], old: Predictions, new: Predictions) -> None:
    """The old model's own files, or its own table, would be a floor of nothing, and the new one's its own floor."""
    for copy in copies:
        for whose, model in (("old", old), ("new", new)):
            if isinstance(copy.source, pa.Table) and isinstance(model.source, pa.Table):
                same = copy.classes == model.classes and copy.source.equals(model.source)
            else:
                same = copy.source == model.source
            if same:
                raise InputError(
                    f"--noise {copy.name} is what the {whose} model itself said, which is no noise: give predictions "
                    "of retrained copies of the old one."
                )


def noise_floor(
    sources: Sources,
    copies: Sequence[Predictions],
    vocabulary: Vocabulary,
    *,
    id_as_text: bool,
    labelled: int,
    confidence: float,
) -> Noise:
    """Each copy against the old model on the `labelled` rows of the comparison, with the labels of the comparison.

    A copy that lacks a sample of the comparison is refused: a floor over other samples would be another floor.
    """
    connection = sources.connection
    joined(sources.old, sources.new, sources.plan).to_native().create_view("compared")
    whole_ids = not id_as_text and sources.old.types[sources.old.columns.index("id")] != "VARCHAR"
    flips, joins = [], ""
    for i, copy in enumerate(copies):
        view = f"copy_{i}"
        register(connection, copy, f"{view}_rows")
        check_scores(connection, copy, f"{view}_rows")
        codes = _copy_codes(vocabulary, describe(connection, copy, f"{view}_rows"))
        whole = pa.types.is_integer(plain_type(copy.schema.field("id").type))
        coded_table(connection, copy, f"{view}_rows", codes, id_as_text=whole != whole_ids)[0].create_view(view)
        key = "CAST(c.id AS VARCHAR)" if whole_ids and not whole else "c.id"
        joins += f" LEFT JOIN {view} ON {key} = {view}.id"
        flips.append(f"(c.cell & 15 <= 1 AND {view}.prediction IS DISTINCT FROM c.label)::INT")
    lacking = ", ".join(f"count(*) FILTER ({view}_id IS NULL)" for view in _views(copies))
    rates = ", ".join(f"sum(f{i})" for i in range(len(copies)))
    columns = ", ".join(
        [*(f"{f} AS f{i}" for i, f in enumerate(flips)), *(f"{view}.id AS {view}_id" for view in _views(copies))]
    )
    share = " + ".join(f"f{i}" for i in range(len(copies)))
    row = connection.sql(
        f"""
        SELECT count(*), sum(x), sum(s), sum(x * x), sum(s * s), sum(x * s), {rates}, {lacking} FROM (
            SELECT *, ({share}) / {len(copies)}.0 AS s FROM (
                SELECT (c.cell & 15 = 1)::INT AS x, {columns} FROM compared c{joins} WHERE c.cell & 15 < 5
            )
        )
        """
    ).fetchall()[0]
    n, sums, per_copy, missing = row[0], row[1:6], row[6 : 6 + len(copies)], row[6 + len(copies) :]
    if not n:
        raise InputError("--noise needs labels: without them no flip is negative.")
    if n != labelled:
        _refuse_duplicates(sources, copies)
    for copy, number in zip(copies, missing, strict=True):
        if number:
            raise InputError(f"{copy.name} lacks {number:,} of the {n:,} samples compared: --noise needs all of them.")
    copy_rates = [float(total) / n for total in per_copy]
    x, c, xx, cc, xc = (float(total) for total in sums)
    found = statistics.noise_excess(n, x, c, xx, cc, xc, copy_rates, confidence=confidence)
    mean = sum(copy_rates) / len(copy_rates)
    floor = statistics.noise_floor(n, c, cc, copy_rates, confidence=confidence)
    # How much retraining varies one copy does not tell, and without that no excess is told from one more retraining.
    several = len(copies) > 1
    return Noise(
        copies=len(copies),
        negative_flip_rate=Figure(value=mean, low=float(floor.low), high=float(floor.high)),
        rates=copy_rates,
        excess=Figure(value=found.excess, low=found.low if several else None, high=found.high if several else None),
        p=found.p_value if several else None,
        exceeds=several and found.low > 0,
    )


def _refuse_duplicates(sources: Sources, copies: Sequence[Predictions]) -> None:
    for copy, view in zip(copies, _views(copies), strict=True):
        twice = f"SELECT id FROM {view} GROUP BY id HAVING count(*) > 1 ORDER BY id LIMIT 1"
        for (first,) in sources.connection.sql(twice).fetchall():
            raise InputError(f"{copy.name} has duplicate ids (first: {first}): remove the copies.")


def _views(copies: Sequence[Predictions]) -> list[str]:
    return [f"copy_{i}" for i in range(len(copies))]


def _copy_codes(vocabulary: Vocabulary, side: Side) -> Mapping[Value, int] | None:
    """A copy's values as codes of the comparison's vocabulary; a class that it does not have is never right.

    A copy speaks of classes as the old model does: indices without names are the old file's, and names are renamed as
    the old file's were.
    """
    text = side.labels is not None or side.predictions is not None
    if vocabulary.names is None:
        if text:
            raise InputError(f"{side.name} holds class names, the compared files hold class indices without names.")
        return None
    if not text and side.classes is None:
        if vocabulary.old is None:
            return None
        indices: dict[Value, int] = {value: code for value, code in vocabulary.old.items() if isinstance(value, int)}
        if not indices:
            raise InputError(f"{side.name} holds class indices without names, the old file class names.")
        return indices
    code = {name: i for i, name in enumerate(vocabulary.names)}

    def code_of(name: str) -> int:
        return code.get(vocabulary.renamed.get(name, name), _UNKNOWN)

    values: dict[Value, int] = {i: code_of(name) for i, name in enumerate(side.classes or ())}
    return values | {name: code_of(name) for name in (*(side.predictions or ()), *(side.labels or ()))}
