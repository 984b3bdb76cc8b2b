"""The pass over logits and probabilities, against the metrics on whole arrays, and by every way the rows can come."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss

import flipguard
from flipguard import InputError, compare, read_predictions
from flipguard.comparison.run import compare_all
from flipguard.comparison.stream import in_step
from flipguard.metrics import FIGURES, tally
from flipguard.predictions import Predictions

Columns = dict[str, Any]
FIGURE_NAMES = [
    "nll_old",
    "nll_new",
    "ece_old",
    "ece_new",
    "surrogate_churn",
    "logit_displacement",
    "prediction_confidence_old",
    "prediction_confidence_new",
    "predictive_entropy_old",
    "predictive_entropy_new",
    "negative_flip_rate",
    "positive_flip_rate",
    "churn",
]
ORDER = np.random.default_rng(11).permutation(101)


def softmax(logits: Any) -> Any:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def values(result: Any) -> dict[str, float]:
    return {name: float(getattr(result, name)) for name in FIGURE_NAMES}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("way", ["aligned", "shuffled", "parquet", "parquet shuffled", "parts"])
def test_every_way_gives_the_same_scores(kind: Any, way: str, naive: Any, tmp_path: Path) -> None:
    old, new = naive.scored_pair(kind=kind)
    expected = tally(old["label"], None, None, old_logits=old["logits"], new_logits=new["logits"])
    sources: list[Any] = [old, new]
    if "shuffled" in way:
        sources[1] = naive.shuffled(new, ORDER)
    if way == "parts":
        for i, (start, stop) in enumerate([(0, 31), (31, 32), (32, 101)]):
            part = {name: column[start:stop] for name, column in new.items()}
            read_predictions(part).write(tmp_path / "new" / f"{i}.parquet")
        sources = [read_predictions(old).write(tmp_path / "old.parquet").name, tmp_path / "new"]
    elif "parquet" in way:
        sources = [read_predictions(s).write(tmp_path / f"{i}.parquet").name for i, s in enumerate(sources)]
    result = compare(*sources)
    for name in FIGURE_NAMES:
        assert float(getattr(result, name)) == pytest.approx(float(FIGURES[name](expected)), rel=1e-5), name
    assert result.flip_rank == expected.pair.rank.tolist()  # type: ignore[union-attr]
    assert sum(result.flip_rank or []) == result.negative_flips > 0


@pytest.mark.parametrize("cluster", [None, "customer"])
def test_all_samples_together_have_the_figures_of_the_whole_comparison(cluster: str | None, naive: Any) -> None:
    old, new = naive.scored_pair()
    more = {"split": np.repeat(["validation", "test"], [13, 88]), "customer": np.arange(101) // 4}
    whole = compare({**old, **more}, {**new, **more}, cluster=cluster, cost_ratio=3)
    together = compare_all({**old, **more}, {**new, **more}, cluster=cluster, cost_ratio=3)
    assert whole.cece_new is not None
    for name in type(together).model_fields:
        figure = getattr(whole, name)
        if "ece" in name:
            figure = figure.model_copy(update={"low": None, "high": None})
        assert getattr(together, name) == figure, name


def test_nll_is_scikit_learns(naive: Any) -> None:
    old, new = naive.scored_pair()
    result = compare(old, new)
    assert float(result.nll_old) == pytest.approx(log_loss(old["label"], softmax(old["logits"])), rel=1e-5)
    assert float(result.nll_new) == pytest.approx(log_loss(new["label"], softmax(new["logits"])), rel=1e-5)


@pytest.mark.parametrize("order", [np.arange(101), ORDER], ids=["aligned", "shuffled"])
def test_probabilities_say_what_logits_say(naive: Any, order: Any) -> None:
    old, new = naive.scored_pair()
    one = compare(old, naive.shuffled(new, order))
    for columns in (old, new):
        columns["probabilities"] = softmax(columns.pop("logits")).astype(np.float32)
    other = compare(old, naive.shuffled(new, order))
    for name in set(FIGURE_NAMES) - {"logit_displacement"}:
        assert float(getattr(other, name)) == pytest.approx(float(getattr(one, name)), rel=1e-4), name
    assert other.logit_displacement is None


@pytest.mark.parametrize("order", [np.arange(101), ORDER], ids=["aligned", "shuffled"])
@pytest.mark.parametrize("side", ["old", "new"])
def test_logits_in_one_file_only(naive: Any, side: str, order: Any) -> None:
    pair = dict(zip(("old", "new"), naive.scored_pair(), strict=True))
    both = compare(pair["old"], pair["new"])
    other = pair["new" if side == "old" else "old"]
    other["prediction"] = other.pop("logits").argmax(axis=1)
    result = compare(pair["old"], naive.shuffled(pair["new"], order))
    assert (result.negative_flips, result.positive_flips) == (both.negative_flips, both.positive_flips)
    assert float(getattr(result, f"nll_{side}")) == pytest.approx(float(getattr(both, f"nll_{side}")))
    assert getattr(result, "nll_new" if side == "old" else "nll_old") is None
    assert result.surrogate_churn is None
    assert result.flip_rank is None


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed"])
@pytest.mark.parametrize("order", [np.arange(101), ORDER], ids=["aligned", "shuffled"])
def test_rows_without_logits_have_no_scores_but_count(naive: Any, kind: str, order: Any, tmp_path: Path) -> None:
    old, new = naive.scored_pair()
    there = np.arange(101) % 5 > 0
    types = {
        "list": pa.list_(pa.float32()),
        "large_list": pa.large_list(pa.float32()),
        "fixed": pa.list_(pa.float32(), 7),
    }
    lists = [row.tolist() if ok else None for row, ok in zip(old["logits"], there, strict=True)]
    said = old["logits"].argmax(axis=1)
    holed = {**old, "prediction": said, "logits": pa.array(lists, types[kind])}
    second = naive.shuffled(new, order)
    expected = tally(old["label"][there], None, None, old_logits=old["logits"][there], new_logits=new["logits"][there])
    path = read_predictions(holed).write(tmp_path / "holed.parquet").name
    for source in (holed, path):
        result = compare(source, second)
        assert result.n == 101
        assert result.missing_old == 0
        assert float(result.nll_old) == pytest.approx(float(FIGURES["nll_old"](expected)), rel=1e-5)
        assert float(result.nll_new) == pytest.approx(float(FIGURES["nll_new"](expected)), rel=1e-5)
        assert float(result.logit_displacement) == pytest.approx(
            float(FIGURES["logit_displacement"](expected)), rel=1e-5
        )
    without = {name: column for name, column in holed.items() if name != "prediction"}
    assert compare(without, second).missing_old == int((~there).sum())
    path = read_predictions(without).write(tmp_path / "without.parquet").name
    assert compare(path, second).missing_old == int((~there).sum())


@pytest.mark.parametrize("order", [np.arange(101), ORDER], ids=["aligned", "shuffled"])
def test_logits_of_models_that_know_different_classes(naive: Any, order: Any) -> None:
    """The new model knows three classes more and has the others in another order."""
    old, new = naive.scored_pair(classes=5)
    names = ["a", "b", "c", "d", "e"]
    more = ["x", "e", "d", "y", "a", "b", "c", "z"]
    wide = np.full((101, 8), -9.0, np.float32)
    for i, name in enumerate(names):
        wide[:, more.index(name)] = new["logits"][:, i]
    old["classes"] = names
    renumbered = {**new, "label": np.array([more.index(names[i]) for i in new["label"]]), "logits": wide}
    renumbered["classes"] = more
    same, mixed = compare(old, {**new, "classes": names}), compare(old, naive.shuffled(renumbered, order))
    assert (same.negative_flips, same.positive_flips) == (mixed.negative_flips, mixed.positive_flips)
    assert float(same.nll_old) == pytest.approx(float(mixed.nll_old), rel=1e-5)
    assert float(same.nll_new) == pytest.approx(float(mixed.nll_new), rel=1e-2)
    assert float(same.logit_displacement) == pytest.approx(float(mixed.logit_displacement), rel=1e-5)
    assert same.flip_rank == mixed.flip_rank
    assert [(f.id, f.label, f.old, f.new) for f in same.worst_flips] == [
        (f.id, f.label, f.old, f.new) for f in mixed.worst_flips
    ]
    assert mixed.old_classes is not None
    assert mixed.old_classes.n == 101


def test_a_narrow_column_of_indices_beside_many_classes(naive: Any) -> None:
    """Indices up to 6 fit into a byte though the list of classes does not."""
    old, new = naive.scored_pair()
    names = [f"class {i}" for i in range(300)]
    for columns, many in ((old, names), (new, [*names, "one more"])):
        columns["prediction"] = columns["logits"].argmax(axis=1).astype(np.int8)
        columns["label"] = columns["label"].astype(np.int8)
        columns["logits"] = np.pad(columns["logits"], ((0, 0), (0, len(many) - 7)), constant_values=-20)
        columns["classes"] = many
    result = compare(old, new)
    assert result.n == 101
    assert result.negative_flips == int(
        ((old["prediction"] == old["label"]) & (new["prediction"] != new["label"])).sum()
    )


def test_groups_carry_their_own_scores(naive: Any) -> None:
    old, new = naive.scored_pair()
    device = np.array(["phone", "watch", "car"])[np.arange(101) % 3]
    for order in (np.arange(101), ORDER):
        result = compare({**old, "device": device}, naive.shuffled(new, order))
        for group in result.slices["device"]:
            own = device == group.value
            expected = log_loss(old["label"][own], softmax(old["logits"][own]), labels=np.arange(7))
            assert float(group.nll_old) == pytest.approx(expected, rel=1e-5)
        for group in result.classes:
            own = old["label"] == int(group.value)
            expected = log_loss(new["label"][own], softmax(new["logits"][own]), labels=np.arange(7))
            assert float(group.nll_new) == pytest.approx(expected, rel=1e-5)


def test_the_worst_flips_are_the_surest(naive: Any) -> None:
    old, new = naive.scored_pair(rows=211)
    p = softmax(new["logits"])
    flipped = (old["logits"].argmax(1) == old["label"]) & (new["logits"].argmax(1) != new["label"])
    worst = sorted(np.flatnonzero(flipped), key=lambda i: -p[i].max())[:10]
    for order in (np.arange(211), np.arange(211)[::-1]):
        result = compare(old, naive.shuffled(new, order))
        assert [f.id for f in result.worst_flips] == [int(old["id"][i]) for i in worst]
        first, i = result.worst_flips[0], worst[0]
        assert first.label == first.old == str(old["label"][i])
        assert first.new == str(new["logits"][i].argmax())
        assert first.new_confidence == pytest.approx(p[i].max(), rel=1e-5)
        assert first.displacement == pytest.approx(np.linalg.norm(old["logits"][i] - new["logits"][i]), rel=1e-5)
        assert first.rank == 1 + int((old["logits"][i] > old["logits"][i][new["logits"][i].argmax()]).sum())


def test_without_scores_the_worst_flips_are_one_of_each_class_that_hurts(naive: Any) -> None:
    old, new = naive.scored_pair(rows=211)
    for columns in (old, new):
        columns["prediction"] = columns.pop("logits").argmax(axis=1)
    result = compare(old, naive.shuffled(new, np.arange(211)[::-1]))
    flipped = (old["prediction"] == old["label"]) & (new["prediction"] != new["label"])
    harmed = [g for g in result.classes if g.negative_flips]
    assert [f.label for f in result.worst_flips] == [g.value for g in harmed]
    for flip in result.worst_flips:
        own = np.flatnonzero(flipped & (old["label"] == int(flip.label or "")))
        assert flip.id == old["id"][own].min()
        assert flip.new == str(new["prediction"][own[0]])


@pytest.mark.parametrize("sizes", [([3, 4], [7]), ([7], [1, 1, 5]), ([2, 0, 5], [5, 2])])
def test_two_streams_go_in_step(sizes: tuple[list[int], list[int]]) -> None:
    def batches(parts: list[int]) -> Any:
        at = 0
        for size in parts:
            yield pa.record_batch({"id": list(range(at, at + size))}, schema=pa.schema({"id": pa.int64()}))
            at += size

    pairs = list(in_step(batches(sizes[0]), batches(sizes[1])))
    assert all(a.equals(b) for a, b in pairs)
    assert [i for a, _ in pairs for i in a.column(0).to_pylist()] == list(range(7))


@pytest.mark.parametrize("order", [np.arange(101), ORDER], ids=["aligned", "shuffled"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["memory", "parquet"])
def test_scores_that_are_not_finite_are_refused(naive: Any, order: Any, bad: float, form: str, tmp_path: Path) -> None:
    old, new = naive.scored_pair()
    new["logits"][31, 3] = bad
    second: Any = naive.shuffled(new, order)
    if form == "parquet":
        second = read_predictions(second).write(tmp_path / "new.parquet").name
    with pytest.raises(InputError, match="the logits of id 98 hold NaN or infinity") as caught:
        compare(old, second)
    assert "\n" not in str(caught.value)


def test_scores_of_other_lengths_are_refused(naive: Any) -> None:
    old, new = naive.scored_pair()
    ragged = [row.tolist() for row in new["logits"]]
    ragged[31] = ragged[31][:6]
    with pytest.raises(InputError, match="id 98 has 6 scores, expected 7"):
        compare(old, {**new, "logits": ragged})
    with pytest.raises(InputError, match="old has 7 scores per row and new 6"):
        compare(old, {**new, "logits": new["logits"][:, :6]})
    with pytest.raises(InputError, match="its rows hold 7 scores, but it names 8 classes"):
        compare({**old, "classes": list("abcdefgh")}, new)
    gap = pa.array([[1.0, None]] * 101)
    with pytest.raises(InputError, match="a score within a row is missing"):
        compare({**old, "logits": gap}, {**new, "prediction": new["logits"].argmax(1), "logits": gap})


def test_numbers_that_are_no_probabilities_are_refused(naive: Any) -> None:
    old, new = naive.scored_pair()
    old["probabilities"] = old.pop("logits")
    message = (
        rf"not all between 0 and 1 with sum 1 \(one is {old['probabilities'].min():.4g}\). Name the column 'logits'"
    )
    with pytest.raises(InputError, match=message):
        compare(old, new)


@pytest.mark.parametrize(
    ("factor", "row", "message"),
    [
        (100, None, r"old: its probabilities look like percentages \(one row sums to 100\): divide them by 100\.$"),
        (100.7, None, "look like percentages"),
        (
            0.9,
            None,
            r"old: its probabilities are not normalised \(one row sums to 0.9\): divide each row by its sum\.$",
        ),
        (97, None, "are not normalised"),
        (3, 2, r"are not normalised \(one row sums to 3\)"),
        (100, 2, "are not normalised"),
        (np.inf, 2, r"are not all finite \(one row sums to inf\)"),
    ],
)
def test_probabilities_that_do_not_sum_to_1_are_told_apart(
    naive: Any, factor: float, row: int | None, message: str
) -> None:
    """Only numbers below 0 can be logits."""
    old, new = naive.scored_pair()
    old["prediction"] = old["logits"].argmax(axis=1)
    old["probabilities"] = softmax(old.pop("logits"))
    assert float(compare(old, new).nll_old) > 0
    old["probabilities"][slice(None) if row is None else row] *= factor
    with pytest.raises(InputError, match=message) as error:
        compare(old, new)
    assert "logits" not in str(error.value)


def test_names_and_scores_without_a_list_of_classes_are_refused(naive: Any) -> None:
    """Which score belongs to which name would be a guess."""
    old, new = naive.scored_pair(classes=2)
    for columns in (old, new):
        columns["label"] = np.array(["cat", "dog"])[columns["label"]]
    with pytest.raises(InputError, match="no list of classes: which score is whose is unknown"):
        compare(old, new)
    named = compare({**old, "classes": ["cat", "dog"]}, {**new, "classes": ["cat", "dog"]})
    assert 0 < float(named.error_rate_old) < 0.5


def test_integer_scores_are_scores(naive: Any) -> None:
    old, new = naive.scored_pair()
    old["logits"] = np.round(old["logits"] * 3).astype(np.int64)
    result = compare(old, new)
    assert float(result.nll_old) == pytest.approx(log_loss(old["label"], softmax(old["logits"])), rel=1e-5)


def test_a_damaged_page_is_one_line(naive: Any, tmp_path: Path) -> None:
    """The footer is whole, the scores are not."""
    old, new = naive.scored_pair(rows=211)
    path = tmp_path / "old.parquet"
    Predictions.from_arrays(**old).write(path)
    start = pq.read_metadata(path).row_group(0).column(2).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + 700] = b"\xee" * 700
    path.write_bytes(bytes(raw))
    with pytest.raises(InputError) as caught:
        compare(path, new)
    assert "\n" not in str(caught.value)


def test_a_loss_is_not_shown_below_zero() -> None:
    """One sure mistake among a few sure hits: the normal interval would reach below what a loss can be."""
    label = np.zeros(7, int)
    logits = np.tile([9.0, 0.0, 0.0], (7, 1))
    logits[0] = [0.0, 9.0, 0.0]
    same = flipguard.Predictions.from_arrays(id=np.arange(7), label=label, logits=logits)
    found = flipguard.compare(same, same)
    assert found.nll_old is not None
    assert found.nll_old.low == 0.0
    assert found.nll_old.high > found.nll_old.value > 1.0
