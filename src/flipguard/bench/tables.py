"""From a bench's records to its tables: the same from the files alone, so that committed numbers can be made again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import special

from flipguard.bench.plan import Link
from flipguard.files import EMPTY_SEAL, seal, seal_holds, whole_file
from flipguard.predictions.table import SEAL_KEY, rows_of
from flipguard.releases.folder import dotted, said
from flipguard.statistics import holm, moderated_variance
from flipguard.statistics.interval import student_quantile
from flipguard.types import DamagedFile, InputError

RUNS, PREDICTIONS = "runs.parquet", "predictions.parquet"
CONDITIONS = ("data", "old", "new", "train")
"""What all figures of a bench have in common."""
LEVEL, ROUNDING = 0.05, 1e-12
PERCENT = {
    "error_rate_old": "ER old",
    "error_rate_new": "ER new",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "relative NFR",
    "churn": "churn",
    "run_churn": "churn of two runs",
    "ece_new": "ECE",
    "cece_new": "cECE",
}
PLAIN = {"nll_new": "NLL", "cnll_new": "cNLL"}
COUNTS = ("negative_flips",)
JUDGED = (
    "error_rate_new",
    "negative_flip_rate",
    "relative_negative_flip_rate",
    "run_churn",
    "nll_new",
    "ece_new",
    "cnll_new",
    "cece_new",
)
"""Figures of which the least is the best."""
PAIRED = tuple(figure for figure in JUDGED if figure != "run_churn")
"""Of them, those that seeds give independently; the churn of runs 0 and 1 and of 0 and 2 share a run."""


@dataclass(frozen=True)
class Cell:
    """A figure of a row over seeds: `p` is that of its difference from the best row's, see `worse_than`."""

    values: Mapping[int, float]
    best: bool = False
    p: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for one."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else None

    def reach(self, confidence: float = 0.95) -> float | None:
        """Half of the interval of the mean, by Student's t over seeds."""
        n, spread = len(self.values), self.spread
        return None if spread is None else float(student_quantile(confidence, n - 1)) * spread / n**0.5


@dataclass(frozen=True)
class Row:
    """All that is known of a row on one part of the data."""

    name: str
    cells: Mapping[str, Cell]
    training_cost: float
    inference_cost: float
    seconds: float
    seeds: tuple[int, ...]
    group: str = ""
    link: Link | None = None


def write_runs(folder: Path, records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """runs.parquet: a line for each row, seed, pair and part; the file's metadata says what bench it is."""
    # Arrow takes the columns from the first line, and some parts have figures that others lack.
    columns = dict.fromkeys(key for record in records for key in record)
    table = pa.Table.from_pylist([{key: record.get(key) for key in columns} for record in records])
    _write(folder / RUNS, table.replace_schema_metadata({"bench": json.dumps(facts)}))


def read_facts(folder: Path) -> dict[str, Any]:
    """Title, data, models, training: what runs.parquet says of itself."""
    metadata = read_table(folder, RUNS).schema.metadata or {}
    try:
        facts: dict[str, Any] = json.loads(metadata[b"bench"])
    except (KeyError, ValueError) as error:
        path = folder / RUNS
        raise DamagedFile(f"{path} is damaged, or no bench's: it does not say which bench it is of.", path) from error
    return facts


def write_predictions(folder: Path, ids: Any, label: Any, columns: Mapping[str, npt.NDArray[np.uint16]]) -> None:
    """predictions.parquet: a line for each test sample, and what every model said, as class codes."""
    _write(
        folder / PREDICTIONS,
        pa.table({"id": pa.array(ids), "label": pa.array(np.asarray(label, np.uint16)), **columns}),
    )


def _write(path: Path, table: pa.Table) -> None:
    """With a checksum of all its bytes in the footer, as prediction files have one."""
    with whole_file(path) as beside:
        with pq.ParquetWriter(beside, table.schema, compression="zstd") as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({SEAL_KEY: EMPTY_SEAL})
        with beside.open("r+b") as file:
            seal(file, at_end=True)


def other_condition(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Where two benches' facts were not measured alike: the first setting, and both its values in words."""
    first, second = (dict(dotted({name: facts.get(name) for name in CONDITIONS})) for facts in (before, now))
    for key in (*first, *second):
        if first.get(key) != second.get(key):
            return key, said(first.get(key)), said(second.get(key))
    return None


def read_table(folder: Path, name: str) -> pa.Table:
    """One of the two files, whole."""
    path = folder / name
    if not path.exists():
        what = "no results of a bench" if name == RUNS else "a part of a bench's results alone"
        raise InputError(f"{folder} holds {what}: there is no {name}.")
    with rows_of(path):
        with path.open("rb") as file:
            if not seal_holds(file, at_end=True):
                raise DamagedFile(f"{path} is damaged: its content does not fit its checksum.", path)
        return pq.read_table(path, partitioning=None)


def read_rows(folder: Path, part: str = "test") -> list[Row]:
    """The rows of a bench from its two files, in the order in which they were written, each compared with the best."""
    every = read_table(folder, RUNS).to_pylist()
    records = [one for one in every if one["part"] == part]
    codes = read_table(folder, PREDICTIONS) if (folder / PREDICTIONS).exists() else None
    names = list(dict.fromkeys(record["row"] for record in records))
    # Of all parts: one may hold ensembles alone, and what one network's answer costs is the same in each.
    least = min((record["inference_flops"] for record in every), default=1.0)
    found = []
    for name in names:
        own = [record for record in records if record["row"] == name]
        cells = {
            figure: Cell(_by_seed(own, figure)) for figure in (*PERCENT, *PLAIN, *COUNTS) if _is_known(own, figure)
        }
        apart = _run_churn(codes, own) if part == "test" and codes is not None else {}
        if apart:
            cells["run_churn"] = Cell(apart)
        mean = {
            key: float(np.mean([one[key] for one in own])) for key in ("training_cost", "inference_flops", "seconds")
        }
        seeds = tuple(dict.fromkeys(one["seed"] for one in own))
        found.append(
            Row(
                name,
                cells,
                mean["training_cost"],
                mean["inference_flops"] / least,
                mean["seconds"],
                seeds,
                own[0].get("group") or "",
                None if own[0].get("chain") is None else Link(own[0]["chain"], own[0]["older"], own[0]["newer"]),
            )
        )
    return [judged for rows in in_groups(found).values() for judged in _judged(rows)]


def in_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that are compared with each other; those without a group are one, too."""
    return {group: [row for row in rows if row.group == group] for group in dict.fromkeys(row.group for row in rows)}


def _is_known(records: Sequence[Mapping[str, Any]], figure: str) -> bool:
    return figure in records[0] and all(record[figure] is not None for record in records)


def _by_seed(records: Sequence[Mapping[str, Any]], figure: str) -> dict[int, float]:
    """The mean over a seed's pairs."""
    seeds = dict.fromkeys(record["seed"] for record in records)
    return {seed: float(np.mean([one[figure] for one in records if one["seed"] == seed])) for seed in seeds}


def _run_churn(table: pa.Table, records: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """How far two runs by different seeds disagree, for each two of them."""
    first = {one["seed"]: f"{one['row']}.{one['seed']}.{one['pair']}.new" for one in reversed(records)}
    codes = {seed: table[column].to_numpy() for seed, column in first.items() if column in table.column_names}
    return {
        place: float(np.mean(codes[one] != codes[other])) for place, (one, other) in enumerate(combinations(codes, 2))
    }


def _judged(rows: list[Row]) -> list[Row]:
    """Each figure's best among the rows that answer at the cost of one model, and who is not shown to be worse."""
    cells = {row.name: dict(row.cells) for row in rows}
    least = min(row.inference_cost for row in rows)
    single = [row for row in rows if row.inference_cost < 1.5 * least]
    for figure in JUDGED:
        among = [row for row in single if figure in row.cells]
        if len(among) < 2:
            continue
        best = min(among, key=lambda row: row.cells[figure].mean)
        others = [row for row in among if row is not best]
        values = best.cells[figure].values
        chances = worse_than(values, [row.cells[figure].values for row in others]) if figure in PAIRED else {}
        cells[best.name][figure] = Cell(values, best=True)
        for place, row in enumerate(others):
            cells[row.name][figure] = Cell(row.cells[figure].values, p=chances.get(place))
    return [replace(row, cells=cells[row.name]) for row in rows]


def worse_than(best: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """A p-value for each of the rows, by its place, that has two seeds or more in common with the best.

    Student's t of the differences over seeds, their variances drawn towards what all rows have in common
    (`moderated_variance`), adjusted over rows by Holm. Alone, three seeds have two degrees of freedom, and of thirty
    rows hardly one would be shown to be worse, however far behind. The row that is truly the best in a figure is taken
    for worse about once in twenty at most, though it is held against one that only seems to be: simulated in the tests.

    >>> seeds = {0: 0.10, 1: 0.12, 2: 0.11}
    >>> chances = worse_than(seeds, [{0: 0.11, 1: 0.12, 2: 0.12}, {0: 0.20, 1: 0.21, 2: 0.22}, {0: 0.2}])
    >>> {place: round(p, 3) for place, p in chances.items()}
    {0: 0.318, 1: 0.0}
    """
    apart = {
        place: np.array([row[seed] - best[seed] for seed in row if seed in best]) for place, row in enumerate(others)
    }
    apart = {place: found for place, found in apart.items() if len(found) > 1 and np.isfinite(found).all()}
    if not apart:
        return {}
    seeds = np.array([len(found) for found in apart.values()])
    # What differs by rounding alone does not differ.
    spread = [np.var(found, ddof=1) if np.ptp(found) > ROUNDING else 0.0 for found in apart.values()]
    variance, freedom = moderated_variance(spread, seeds - 1)
    known = variance > 0
    means = np.abs([np.mean(found) for found in apart.values()])[known]
    raw = 2 * special.stdtr(freedom[known], -means / np.sqrt(variance[known] / seeds[known]))
    return dict(zip(np.array(list(apart))[known].tolist(), map(float, holm(raw)), strict=True))


def paired_p(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Two-sided p-value of Student's t over the seeds that both have; None with fewer than two, or without spread.

    >>> round(paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.5, 2: 1.0}), 4)
    0.0351
    >>> paired_p({0: 0.3, 1: 0.4, 2: 0.5}, {0: 0.2, 1: 0.3, 2: 0.4})
    """
    shared = [seed for seed in one if seed in other]
    if len(shared) < 2:
        return None
    apart = np.array([one[seed] - other[seed] for seed in shared])
    if np.ptp(apart) <= ROUNDING:
        return None
    spread = float(np.std(apart, ddof=1))
    t = abs(float(np.mean(apart))) / (spread / len(shared) ** 0.5)
    return float(2 * special.stdtr(len(shared) - 1, -t))
