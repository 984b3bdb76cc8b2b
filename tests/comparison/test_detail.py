"""What lies under a comparison agrees with the comparison, and with a naive count."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flipguard import compare
from flipguard.comparison.detail import displacement_counts, displacement_edges
from flipguard.comparison.run import compare_in_detail
from flipguard.metrics import OUTCOMES


def test_the_detail_holds_the_same_comparison_and_the_flips_that_compare_writes(naive: Any, tmp_path: Path) -> None:
    old, new = naive.scored_pair()
    detail = compare_in_detail(old, new)
    assert detail.comparison == compare(old, new, flips=tmp_path / "flips.parquet")
    assert detail.flips.to_pylist() == pq.read_table(tmp_path / "flips.parquet").to_pylist()


def test_the_margin_is_the_gap_between_the_two_largest_probabilities(naive: Any) -> None:
    old, new = naive.scored_pair()
    place = {id_: i for i, id_ in enumerate(old["id"].tolist())}
    rows = compare_in_detail(old, new).flips.to_pylist()
    assert rows
    for row in rows:
        for side, columns in (("old", old), ("new", new)):
            z = columns["logits"][place[row["id"]]].astype(float)
            first, second = np.sort(np.exp(z) / np.exp(z).sum())[::-1][:2]
            assert row[f"{side}_margin"] == pytest.approx(first - second, abs=1e-5)


def test_every_scored_row_is_in_one_displacement_bin_of_its_outcome(naive: Any) -> None:
    old, new = naive.scored_pair()
    detail = compare_in_detail(old, new)
    counts = detail.displacements
    assert counts is not None
    edges = displacement_edges()
    assert counts.shape == (len(OUTCOMES), len(edges) - 1)
    moved = np.linalg.norm(old["logits"].astype(float) - new["logits"], axis=1)
    assert counts.sum(axis=0).tolist() == np.histogram(moved, edges)[0].tolist()
    assert counts[OUTCOMES.index("negative_flip")].sum() == detail.comparison.negative_flips


def test_displacements_beyond_the_ends_enter_the_outermost_bins() -> None:
    counts = displacement_counts(np.array([0.0, 1e300, np.nan]), np.array([2, 3, 3]))
    assert counts[2, 0] == counts[3, -1] == counts.sum() / 2 == 1


def test_the_calibration_bins_are_those_of_the_whole_set(naive: Any) -> None:
    old, new = naive.scored_pair()
    detail = compare_in_detail(old, new)
    assert detail.bins is not None
    ece = np.abs(detail.bins[:, :, 1] - detail.bins[:, :, 2]).sum(axis=1) / detail.bins[:, :, 0].sum(axis=1)
    found = detail.comparison
    assert found.ece_old is not None
    assert found.ece_new is not None
    assert ece == pytest.approx([float(found.ece_old), float(found.ece_new)])


def test_without_scores_there_are_neither_bins_nor_displacements() -> None:
    old = {"id": [1, 2, 3], "label": [0, 1, 1], "prediction": [0, 1, 0], "rank": ["a", "b", "a"]}
    detail = compare_in_detail(old, {**old, "prediction": [0, 0, 0]})
    assert (detail.bins, detail.displacements) == (None, None)
    assert detail.slices == {"rank": "slice_rank"}
    assert detail.flips["slice_rank"].to_pylist() == ["b"]
