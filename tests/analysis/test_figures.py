"""Figures from prediction files: their data against naive counts, their pictures drawn."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from flipguard import InputError, Predictions
from flipguard.analysis.churn import accuracy_against_churn, churn_against_coefficient, swept
from flipguard.analysis.confidence import entropy_in_and_out, prediction_confidence, regularised_losses
from flipguard.analysis.displacement import displacement_norms
from flipguard.analysis.draw import draw
from flipguard.analysis.ensembles import ensemble_size
from flipguard.analysis.members import Members, read_members
from flipguard.analysis.rates import against_parameter, error_against_flips, gain_against_flips, over_the_chain
from flipguard.cli.figure import FIGURES
from flipguard.comparison.chain import matrix
from one_process import in_turn

N, C = 53, 7
CLASSES = tuple("abcdefg")


def member(seed: int, strength: float = 2.0) -> Predictions:
    rng = np.random.default_rng(seed)
    label = np.arange(N) % C
    order = rng.permutation(N)
    logits = rng.normal(size=(N, C)) + strength * np.eye(C)[label]
    names = [CLASSES[code] for code in label[order]] if seed % 2 else label[order]
    return Predictions.from_arrays(
        id=order, label=names, logits=logits[order], classes=CLASSES, model="m", version=str(seed)
    )


def said(predictions: Predictions) -> np.ndarray:
    table = predictions.table(["id", "logits"])
    return np.array(table["logits"].to_pylist())[np.argsort(table["id"].to_numpy())].argmax(axis=1)


def test_members_are_aligned_by_id_and_labelled_by_index() -> None:
    for first in (1, 2):
        members = read_members([member(first), member(3)])
        assert members.logits.shape == (2, N, C)
        ids = np.array(members.ids)
        assert (members.label == ids % C).all()
        assert (members.logits[1].argmax(axis=1) == said(member(3))[ids]).all()
        again = read_members([member(5)], like=members)
        assert again.ids == members.ids


def test_features_are_read_in_place_of_logits() -> None:
    features = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    columns = {"id": np.arange(N), "label": np.arange(N) % C, "prediction": np.arange(N) % C}
    members = read_members([Predictions.from_arrays(**columns, features=features)], column="features")
    assert (members.logits[0] == features).all()


def test_norms_need_members_that_differ() -> None:
    one = read_members([member(1)])
    with pytest.raises(InputError, match="needs at least two on each side"):
        displacement_norms(one, one, sizes=(1,))
    with pytest.raises(InputError, match=r"an ensemble of 4 needs as many members, there are 1: give more, or smaller"):
        ensemble_size({"": (one, one)}, sizes=(4,))


def test_a_chain_s_flips_are_those_of_each_pair() -> None:
    versions = [member(seed, strength) for seed, strength in ((1, 1.0), (2, 1.5), (3, 2.0), (4, 3.0))]
    plot = over_the_chain(matrix(versions))
    errors, against = plot.panels
    label = np.arange(N) % C
    right = [said(version) == label for version in versions]
    assert errors.series[0].y == pytest.approx([1 - r.mean() for r in right])
    assert [series.name for series in against.series] == ["against 1 m 1", "against 2 m 2", "against 3 m 3"]
    for old, series in enumerate(against.series):
        assert series.x == tuple(range(old + 2, 5))
        assert series.y == pytest.approx([(right[old] & ~right[new]).mean() for new in range(old + 1, 4)])
    total = sum(int((right[i] & ~right[i + 1]).sum()) for i in range(3))
    assert plot.facts["negative flips along the chain"] == total
    assert f"{total} negative flips" in plot.title


def test_members_that_do_not_fit_are_an_error() -> None:
    short = Predictions.from_arrays(id=[1, 2], label=[0, 1], logits=np.eye(2), name="short")
    with pytest.raises(InputError, match="short lacks 51 samples of the others"):
        read_members([member(1), short])
    bare = Predictions.from_arrays(id=np.arange(N), label=np.zeros(N, int), prediction=np.zeros(N, int))
    with pytest.raises(InputError, match="has no logits or probabilities"):
        read_members([bare])
    with pytest.raises(InputError, match="at least one"):
        read_members([])


def test_error_against_flips_holds_each_candidate() -> None:
    old, new = member(1), [member(2), member(3, 4.0)]
    plot = error_against_flips({"weak": [(old, new[0])], "strong": [(old, new[1])], "both": [(old, n) for n in new]})
    label = np.arange(N) % C
    points = []
    for series, candidate in zip(plot.panels[0].series, new, strict=False):
        right = [said(p) == label for p in (old, candidate)]
        points.append(((~right[1]).mean(), (right[0] & ~right[1]).mean()))
        assert (series.x, series.y) == tuple((value,) for value in points[-1])
        assert series.low is not None
        assert series.low[0] <= series.y[0]
    both = plot.panels[0].series[2]
    assert (both.x[0], both.y[0]) == pytest.approx(tuple(np.mean(points, axis=0)))
    assert (both.low, both.high) == ((min(p[1] for p in points),), (max(p[1] for p in points),))


def test_gain_against_flips_holds_every_update() -> None:
    zoo = [member(i, 1.0 + i / 2) for i in range(1, 5)]
    label = np.arange(N) % C
    right = [said(p) == label for p in zoo]
    gains, rates, updates = (panel.series[0] for panel in gain_against_flips(zoo).panels)
    cells = [(int(y), int(x)) for x, y in zip(gains.x, gains.y, strict=True)]
    assert sorted(cells) == [(i, j) for i in range(4) for j in range(4) if i != j]
    assert gains.z == pytest.approx([right[j].mean() - right[i].mean() for i, j in cells])
    assert rates.z == pytest.approx([(right[i] & ~right[j]).mean() for i, j in cells])
    gain = dict(zip(cells, zip(gains.z or (), rates.z or (), strict=True), strict=True))
    expected = sorted(values for values in gain.values() if values[0] >= 0)
    assert np.allclose(sorted(zip(updates.x, updates.y, strict=True)), expected)


def test_against_parameter_is_in_the_parameters_order() -> None:
    plot = against_parameter({3.0: [(member(1), member(2))], 0.5: [(member(1), member(3))]}, name="α")
    titles = [panel.y for panel in plot.panels]
    assert titles == ["error", "negative flip rate", "churn", "entropy of the new model", "accuracy"]
    assert plot.panels[2].series[0].x == (0.5, 3.0)
    assert plot.panels[2].series[0].y[0] == (said(member(1)) != said(member(3))).mean()


def test_churn_is_between_the_runs_of_one_setting() -> None:
    runs = [member(seed) for seed in (1, 2, 3, 4, 5)]
    members = read_members(runs)
    sweep = swept(members, (0.2, 0.1, 0.2, 0.1, 0.2))
    assert {value: found.logits.shape[0] for value, found in sweep.items()} == {0.2: 3, 0.1: 2}
    entropy, accuracy, churn = churn_against_coefficient({"α": sweep}).panels
    assert churn.series[0].x == (0.1, 0.2)
    answers = [said(run) for run in runs]
    pairs = [(answers[i] != answers[j]).mean() for i, j in ((0, 2), (0, 4), (2, 4))]
    assert churn.series[0].y[1] == pytest.approx(np.mean(pairs))
    assert (churn.series[0].low or ())[1] == min(pairs)
    right = [(answers[i] == np.arange(N) % C).mean() for i in (1, 3)]
    assert accuracy.series[0].y[0] == pytest.approx(np.mean(right))
    assert 0 < entropy.series[0].y[0] < np.log(C)
    (trade,) = accuracy_against_churn({"α": sweep}).panels[0].series
    assert (trade.x, trade.y) == (churn.series[0].y, accuracy.series[0].y)
    with pytest.raises(InputError, match="at least two"):
        churn_against_coefficient({"α": swept(read_members(runs[:1]), (0.1,))})
    with pytest.raises(InputError, match="5 runs needs a value, 1 came"):
        swept(members, (0.1,))


def test_entropy_and_confidence_are_those_of_each_model() -> None:
    flat = Members(("flat",), (0, 1), np.array([0, 1]), np.zeros((1, 2, C)))
    sure = Members(("sure",), (0, 1), np.array([0, 1]), 50 * np.eye(C)[None, :2])
    facts = entropy_in_and_out({"net": sure}, {"net": flat}).facts
    assert facts["mean, net, out"] == pytest.approx(np.log(C))
    assert facts["mean, net, in"] == pytest.approx(0, abs=1e-9)
    assert facts["AUROC, net"] == 1
    assert prediction_confidence({"flat": flat, "sure": sure}).facts == pytest.approx(
        {"mean, flat": 0, "mean, sure": 1}
    )


def test_the_regularised_loss_at_known_points() -> None:
    plot = regularised_losses(alphas=(0.0, 0.5), taus=(2.0,))
    plain, half = plot.panels[0].series
    place = int(np.argmin(np.abs(np.array(plain.x) - 0.5)))
    p = plain.x[place]
    assert plain.y[place] == pytest.approx(-np.log(p), rel=1e-5)
    assert half.y[place] == pytest.approx(-0.5 * np.log(p) - 0.5 * (p * np.log(p) + (1 - p) * np.log(1 - p)))
    (scaled,) = plot.panels[2].series
    assert scaled.y[0] == pytest.approx(np.log(1 + np.exp(3.0)))


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_a_picture_is_drawn_whole_and_twice_the_same(tmp_path: Path, ending: str) -> None:
    plot = error_against_flips({str(seed): [(member(1), member(seed))] for seed in (2, 3)})
    for name in ("a", "b"):
        draw(plot, tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert len(first) > 2000
    assert first == second


def test_tables_and_empty_places_are_drawn(tmp_path: Path) -> None:
    draw(gain_against_flips([member(1), member(2)]), tmp_path / "zoo.svg")
    draw(against_parameter({x: [(member(1), member(2))] for x in (1.0, 2.0)}), tmp_path / "five.svg")
    for name, panels in (("zoo", 3), ("five", 5)):
        text = (tmp_path / f"{name}.svg").read_text()
        assert ">negative flip rate<" in text or ">negative flip rate, %<" in text
        # A place without a panel has no background, which is each panel's second patch after the figure's own.
        drawn = ET.fromstring(text).iter("{http://www.w3.org/2000/svg}g")
        axes = [g for g in drawn if (g.get("id") or "").startswith("axes_")]
        assert sum(any((part.get("id") or "").startswith("patch_") for part in g) for g in axes) == panels


def test_an_unknown_ending_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf or \.json"):
        draw(regularised_losses(), tmp_path / "f.gif")


def test_the_command_draws_from_files_and_names_the_figures(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.parquet" for i in range(1, 5)]
    for i, path in enumerate(paths, start=1):
        member(i).write(path)
    done, chain, alone, unknown, incomplete = in_turn(
        tmp_path,
        ("figure", "ensemble-size", "--old", *paths[:2], "--new", *paths[2:], "--sizes", 1, 2, "--out", "f.json"),
        ("figure", "chain", "--old", paths[0], "--new", *paths[1:], "--out", "c.json"),
        ("figure", "gain-against-flips", "--new", paths[0], "--out", "g.svg"),
        ("figure", "nothing", "--out", "g.svg"),
        ("figure", "against-parameter", "--old", paths[0], "--new", paths[1], "--out", "g.svg"),
    )
    assert (done.code, done.stderr) == (0, "")
    stored = json.loads((tmp_path / "f.json").read_text())
    assert stored["panels"][1]["series"][0]["x"] == [1.0, 2.0]
    assert f"NFR, 2×: {stored['facts']['NFR, 2×']:.4g}" in done.stdout
    assert (chain.code, chain.stderr) == (0, "")
    total = matrix(paths).sum_negative_flips
    assert json.loads((tmp_path / "c.json").read_text())["facts"]["negative flips along the chain"] == total
    assert alone.code == 2
    assert "needs every version's file, the oldest first: --new V1 V2" in alone.stderr
    assert unknown.code == 2
    assert all(name in unknown.stderr for name in FIGURES)
    assert "needs --values" in incomplete.stderr


def test_the_two_class_example_trains_its_own_models(tmp_path: Path) -> None:
    (done,) = in_turn(tmp_path, ("figure", "two-class", "--out", "two.svg"))
    assert (done.code, done.stderr) == (0, "")
    assert ET.parse(tmp_path / "two.svg").getroot().tag.endswith("svg")
    facts = dict(line.split(": ") for line in done.stdout.splitlines()[:-1])
    assert float(facts["negative flips, 3×"]) < float(facts["negative flips, 1×"])


def test_the_docs_show_every_figure() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "figures.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in FIGURES)
    pictures = {path.name for path in (docs / "pictures").glob("*.svg")}
    assert set(re.findall(r"\(pictures/([a-z_]+\.svg)\)", text)) == pictures
    assert set(json.loads((docs / "pictures" / "facts.json").read_text(encoding="utf-8"))) == {p[:-4] for p in pictures}
    assert sum(path.stat().st_size for path in (docs / "pictures").iterdir()) < 1_500_000


def test_validation_samples_are_left_out_as_in_a_comparison() -> None:
    generator = np.random.default_rng(0)
    split = np.array(["validation"] * 4 + ["test"] * 7)
    said = Predictions.from_arrays(
        id=np.arange(11), label=np.arange(11) % 3, logits=generator.normal(size=(11, 3)), split=split
    )
    found = read_members([said, said])
    assert found.ids == tuple(range(4, 11))
    assert found.label.tolist() == [i % 3 for i in range(4, 11)]
    assert found.logits.shape == (2, 7, 3)
