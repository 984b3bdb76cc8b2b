"""What the charts show is what `compare` and `matrix` say, number by number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flipguard
from flipguard.comparison.detail import Detail
from flipguard.comparison.run import compare_in_detail
from flipguard.reports.html.chains import candidates, heat_map, history
from flipguard.reports.html.charts import MOST_CLASSES, Chart, confusion, flow
from flipguard.reports.html.page import report
from flipguard.reports.html.payload import negative_flips
from flipguard.reports.html.scores import score_charts

N, C = 997, 7


def model(seed: int, sure: float = 2.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    label = np.arange(N) % C
    logits = rng.normal(size=(N, C)) + sure * np.eye(C)[label]
    return {"id": np.arange(N), "label": label, "logits": logits, "classes": [f"c{i}" for i in range(C)]}


@pytest.fixture(scope="module")
def detail() -> Detail:
    return compare_in_detail(model(0), model(1, 2.5))


@pytest.fixture(scope="module")
def scores(detail: Detail) -> dict[str, Chart]:
    return {chart.id: chart for chart in score_charts(detail, negative_flips(detail, N))}


def softmax(side: dict[str, Any]) -> Any:
    powers = np.exp(side["logits"] - side["logits"].max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def right(side: dict[str, Any]) -> Any:
    return side["logits"].argmax(axis=1) == side["label"]


def test_the_flow_has_the_counts_on_its_bands_and_beside_them(detail: Detail) -> None:
    chart, found = flow(detail.comparison), detail.comparison
    was, now = right(model(0)), right(model(1, 2.5))
    assert chart.spec["data"][0]["link"]["value"] == [
        (was & now).sum(),
        found.negative_flips,
        found.positive_flips,
        (~was & ~now).sum(),
    ]
    beside = [note["text"].split("<br>")[1].replace(",", "") for note in chart.spec["layout"]["annotations"]]
    assert [int(n) for n in beside] == [was.sum(), (~was).sum(), now.sum(), (~now).sum()]


def test_the_reliability_diagram_has_the_bins_of_the_models(scores: dict[str, Chart]) -> None:
    traces = scores["reliability"].spec["data"][1:]
    for trace, side in zip(traces, (model(0), model(1, 2.5)), strict=True):
        sure = softmax(side).max(axis=1)
        bins = np.minimum((sure * 15).astype(int), 14)
        expected = [(sure[bins == b].mean(), right(side)[bins == b].mean()) for b in range(15) if (bins == b).any()]
        assert trace["x"] == pytest.approx([x for x, _ in expected], abs=1e-3)
        assert trace["y"] == pytest.approx([y for _, y in expected], abs=2e-2)


def test_the_histograms_of_confidence_and_displacement_are_those_of_the_samples(scores: dict[str, Chart]) -> None:
    old, new = model(0), model(1, 2.5)
    was, now = right(old), right(new)
    flipped = was & ~now
    by_name = {trace["name"]: trace["y"][:-1] for trace in scores["confidence"].spec["data"]}
    for name, side in (("old, negative flips", old), ("new, negative flips", new)):
        counts, _ = np.histogram(softmax(side).max(axis=1)[flipped], np.linspace(0, 1, 16))
        assert by_name[name] == pytest.approx(counts / flipped.sum(), abs=1e-2)
    moved = np.linalg.norm(old["logits"] - new["logits"], axis=1)
    groups = {
        "stayed right": was & now,
        "negative flips": flipped,
        "positive flips": ~was & now,
        "stayed wrong": ~was & ~now,
    }
    for trace in scores["displacement"].spec["data"]:
        chosen = moved[groups[trace["name"]]]
        counts, _ = np.histogram(chosen, trace["x"])
        assert trace["y"][:-1] == pytest.approx(counts / len(chosen), abs=1e-2)
    table = {row[0]: float(row[3]) for row in scores["displacement"].rows}
    for name, mask in groups.items():
        assert table[name] == pytest.approx(np.median(moved[mask]), rel=0.1)


def test_the_ranks_are_those_of_the_comparison(detail: Detail, scores: dict[str, Chart]) -> None:
    ranks = detail.comparison.flip_rank
    assert ranks is not None
    trace = scores["ranks"].spec["data"][0]
    shown = {name: int(text.replace(",", "")) for name, text in zip(trace["x"], trace["text"], strict=True)}
    assert sum(shown.values()) == sum(ranks) == detail.comparison.negative_flips
    assert shown["2"] == ranks[1]


def test_candidates_stand_at_their_error_and_flips_with_intervals() -> None:
    found = [flipguard.compare(model(0), model(seed, sure), by=()) for seed, sure in ((1, 2.5), (2, 3.0))]
    for trace, each in zip(candidates(found).spec["data"], found, strict=True):
        error, flips = each.error_rate_new, each.negative_flip_rate
        assert error is not None
        assert flips is not None
        assert (trace["x"], trace["y"]) == ([error.value], [flips.value])
        for bars, figure in ((trace["error_x"], error), (trace["error_y"], flips)):
            assert figure.low is not None
            assert figure.high is not None
            ends = [figure.value - bars["arrayminus"][0], figure.value + bars["array"][0]]
            assert ends == pytest.approx([figure.low, figure.high])


def test_the_heat_map_and_the_history_are_those_of_the_matrix() -> None:
    chain = flipguard.matrix([model(0), model(1, 2.5), model(2, 3.0)])
    z = heat_map(chain).spec["data"][0]["z"]
    assert [z[i][i] for i in range(3)] == [None] * 3
    for i in range(3):
        for j in range(3):
            assert i == j or z[i][j] == chain.negative_flip_rate[i][j].value
    flips, errors = history(chain).spec["data"]
    assert flips["y"] == [chain.negative_flip_rate[0][1].value, chain.negative_flip_rate[1][2].value]
    assert errors["y"] == [figure.value for figure in chain.error_rate]


def test_the_confusion_counts_every_flip_and_its_columns_follow_its_rows(detail: Detail) -> None:
    flips = negative_flips(detail, N)
    chart = confusion(flips, [f"c{i}" for i in range(C)])
    trace = chart.spec["data"][0]
    assert sum(map(sum, trace["z"])) == detail.comparison.negative_flips
    assert trace["x"] == trace["y"]
    assert all(trace["z"][i][i] == 0 for i in range(C))
    assert trace["text"][0][0] == ""
    old, new = model(0), model(1, 2.5)
    row, column = (int(name[1:]) for name in (trace["y"][1], trace["x"][0]))
    said = new["logits"].argmax(axis=1)
    assert trace["z"][1][0] == (right(old) & (old["label"] == row) & (said == column)).sum()


def test_the_largest_cells_of_many_classes_run_along_the_diagonal(tmp_path: Path) -> None:
    """53 classes, each of which flips to one other of its own: more than are shown."""
    count = 53
    label = np.repeat(np.arange(count), np.arange(count) + 3)
    old = {"id": np.arange(len(label)), "label": label, "prediction": label}
    new = {**old, "prediction": (label + 17) % count}
    names = [f"c{i:02}" for i in range(count)]
    found = compare_in_detail({**old, "classes": names}, {**new, "classes": names})
    trace = confusion(negative_flips(found, len(label)), names).spec["data"][0]
    assert len(trace["y"]) == len(trace["x"]) == MOST_CLASSES
    largest = [int(np.argmax(row)) for row in trace["z"]]
    assert largest == list(range(MOST_CLASSES))
    assert report(old, new, tmp_path / "r.html").negative_flips == len(label)
