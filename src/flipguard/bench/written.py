"""A bench's table and its picture, from the two files that hold all that was measured."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flipguard.bench.corrupted import PART
from flipguard.bench.evaluate import OLD_CLASSES
from flipguard.bench.front import draw_front
from flipguard.bench.markdown import bench_markdown
from flipguard.bench.tables import RUNS, Row, read_facts, read_rows
from flipguard.files import whole_file
from flipguard.types import MissingExtra

PARTS = ("test", f"test{OLD_CLASSES}", PART, "validation", f"validation{OLD_CLASSES}")
TABLE, FRONT = "table.md", "front.svg"


def write_tables(folder: Path) -> list[Row]:
    """table.md and front.svg from runs.parquet and predictions.parquet alone; returns the test part's rows."""
    facts, tables = read_facts(folder), tables_of(folder)
    with whole_file(folder / TABLE) as beside:
        beside.write_text(bench_markdown(facts["title"], tables, _in_words(folder, facts)), encoding="utf-8")
    try:
        draw_front(facts["title"], tables["test"], folder / FRONT)
    except MissingExtra:
        # Without matplotlib the tables say it all.
        (folder / FRONT).unlink(missing_ok=True)
    return tables["test"]


def tables_of(folder: Path) -> dict[str, list[Row]]:
    """Rows by part of the data, the test part first."""
    found = {part: read_rows(folder, part) for part in PARTS}
    return {part: rows for part, rows in found.items() if rows}


def _in_words(folder: Path, facts: dict[str, Any]) -> list[str]:
    runs = pq.read_table(folder / RUNS, columns=["seed", "hardware", "n", "part"]).to_pylist()
    sizes = {run["part"]: run["n"] for run in runs}
    held = ", ".join(f"{size:,} {part}" for part, size in sizes.items() if part in ("validation", "test"))
    return [
        f"Data: {_inline(facts['data'])} ({held} samples). Old: {_inline(facts['old'])}. New: {_inline(facts['new'])}.",
        f"Training: {_inline(facts.get('train', {})) or 'defaults'}.",
        f"Hardware: {'; '.join(sorted({run['hardware'] for run in runs}))}. "
        f"Seeds: {', '.join(map(str, sorted({run['seed'] for run in runs})))}.",
    ]


def _inline(value: dict[str, Any]) -> str:
    named = {key: inner for key, inner in value.items() if key != "name"}
    rest = ", ".join(f"{key} {inner}" for key, inner in named.items() if inner is not None)
    return " ".join(filter(None, [str(value.get("name", "")), f"({rest})" if rest and "name" in value else rest]))
