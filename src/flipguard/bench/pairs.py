"""What was measured of a bench's pairs: a record of each, beside what its two models said. Tables come from them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flipguard.bench.cost import Costs
from flipguard.bench.evaluate import Pair, facts_of_pair, measured
from flipguard.bench.kept import read_arrays
from flipguard.bench.plan import SIDES, BenchSpec
from flipguard.bench.shop import Shop
from flipguard.bench.tables import write_predictions, write_runs
from flipguard.data import Split
from flipguard.files import whole_file
from flipguard.releases.folder import made, read_json, write_json

PAIRS = "pairs"


@dataclass(frozen=True)
class Records:
    """The records in a bench's folder."""

    spec: BenchSpec
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / PAIRS

    def path(self, pair: Pair) -> Path:
        return self.folder / f"{pair.column}.json"

    def is_measured(self, pair: Pair) -> bool:
        path = self.path(pair)
        return path.exists() and read_json(path).get("key") == self._mark(pair)

    def _mark(self, pair: Pair) -> str:
        """Changes with what is measured, and with the weights of any network."""
        plan = self.spec.corruptions
        return pair.key if plan is None else f"{pair.key} | {plan.model_dump_json()}"

    def measure(self, pair: Pair, shop: Shop, costs: Costs, extra: Sequence[Mapping[str, Any]] = ()) -> None:
        """Compare a pair's models, and write it down; `extra` are figures of it that were measured elsewhere."""
        records, codes = measured(pair, shop, costs)
        records += [{**facts_of_pair(pair, shop, costs), **one} for one in extra]
        made(self.folder)
        with whole_file(self.path(pair).with_suffix(".npz")) as beside, beside.open("wb") as file:
            np.savez_compressed(file, **codes)  # type: ignore[arg-type]
        write_json(self.path(pair), {"key": self._mark(pair), "records": records}, sealed=True)

    def collect(self, pairs: Iterable[Pair], test: Split) -> None:
        """runs.parquet and predictions.parquet of those pairs that are measured."""
        records: list[dict[str, Any]] = []
        columns: dict[str, Any] = {}
        for pair in filter(self.is_measured, pairs):
            place, path = self._place(pair.row), self.path(pair).with_suffix(".npz")
            records += [{**record, **place} for record in read_json(self.path(pair))["records"]]
            said_by = read_arrays(path, SIDES)
            columns |= {f"{pair.column}.{side}": said_by[side] for side in SIDES}
        write_runs(self.out, records, self.spec.facts)
        write_predictions(self.out, test.ids, test.y.cpu().numpy(), columns)

    def _place(self, row: str) -> dict[str, Any]:
        """Where a row stands in the tables: its group, and which link of which chain it is."""
        if not any(plan.group for plan in self.spec.every_row.values()):
            return {}
        link = self.spec.links.get(row)
        return {
            "group": self.spec.every_row[row].group,
            "chain": None if link is None else link.chain,
            "older": None if link is None else link.older,
            "newer": None if link is None else link.newer,
        }
