"""How fast `flipguard.compare` is and how much memory it takes, against what it replaces; both sides in one run.

    python benchmarks/compare.py            everything; about 8 GB of disk for the data, which are kept
    python benchmarks/compare.py --quick    a tenth of the rows and no 100-million-row run: a check that it works

Every side runs in a fresh process, so that its peak memory (VmHWM) is its own, and the sides of a figure take turns.
Of the repetitions the fastest counts for time and the largest for memory. `call` is the wall time of the call alone,
`process` also that of starting Python and importing the libraries. The files are in the page cache.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
CLASSES = 100
SEED = 20
LARGE_BYTES = 6 * 10**9
GB = 10**9


# --- the sides: each takes (old, new), and imports what it needs, so that another side's imports cost it nothing


def flipguard_compare(old: Path, new: Path) -> dict[str, Any]:
    import flipguard

    start = time.perf_counter()
    result = flipguard.compare(old, new)
    return {"call": time.perf_counter() - start, "negative_flips": result.negative_flips, "n": result.n}


def duckdb_join(old: Path, new: Path) -> dict[str, Any]:
    """The bare join-and-count: how many rows match, and how many of them are negative flips."""
    import duckdb

    start = time.perf_counter()
    row = duckdb.sql(
        f"""SELECT count(*), count(*) FILTER (o.prediction = o.label AND n.prediction <> o.label)
            FROM read_parquet('{old}') o JOIN read_parquet('{new}') n USING (id)"""
    ).fetchall()[0]
    return {"call": time.perf_counter() - start, "negative_flips": row[1], "n": row[0]}


def pandas_merge(old: Path, new: Path) -> dict[str, Any]:
    """What one would write in a notebook: merge, a column per question, a table per class."""
    import pandas as pd

    start = time.perf_counter()
    columns = ["id", "label", "prediction"]
    before, after = pd.read_parquet(old, columns=columns), pd.read_parquet(new, columns=columns)
    rows = before.merge(after, on="id", suffixes=("_old", "_new"), validate="one_to_one")
    if len(rows) != len(before) or len(rows) != len(after):
        raise ValueError("ids in one file only")
    if (rows["label_old"] != rows["label_new"]).any():
        raise ValueError("labels contradict each other")
    rows["right_old"] = rows["prediction_old"] == rows["label_old"]
    rows["right_new"] = rows["prediction_new"] == rows["label_old"]
    rows["negative_flip"] = rows["right_old"] & ~rows["right_new"]
    rows["positive_flip"] = ~rows["right_old"] & rows["right_new"]
    rows["churn"] = rows["prediction_old"] != rows["prediction_new"]
    flags = ["right_old", "right_new", "negative_flip", "positive_flip", "churn"]
    by_class = rows.groupby("label_old")[flags].agg(["sum", "mean"])
    flips = int(by_class[("negative_flip", "sum")].sum())
    return {"call": time.perf_counter() - start, "negative_flips": flips, "n": len(rows)}


def read_only(old: Path, new: Path) -> dict[str, Any]:
    """All columns of both files, batch by batch, one file after the other; nothing is done with them."""
    import pyarrow.parquet as pq

    start = time.perf_counter()
    rows = 0
    for path in (old, new):
        with pq.ParquetFile(path, pre_buffer=False) as file:
            rows += sum(batch.num_rows for batch in file.iter_batches())
    return {"call": time.perf_counter() - start, "n": rows // 2}


SIDES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    side.__name__: side for side in (flipguard_compare, duckdb_join, pandas_merge, read_only)
}


# --- one run in a process of its own


@dataclass
class Run:
    """The best of some repetitions of a side. Times in seconds, memory in bytes."""

    side: str
    call: float = float("inf")
    process: float = float("inf")
    cpu: float = float("inf")
    memory: int = 0
    negative_flips: int | None = None
    n: int = 0

    def repeat(self, old: Path, new: Path) -> None:
        start = time.perf_counter()
        command = [sys.executable, __file__, "--side", self.side, str(old), str(new)]
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        process = time.perf_counter() - start
        found = json.loads(child.stdout)
        self.call = min(self.call, found["call"])
        self.process = min(self.process, process)
        self.cpu = min(self.cpu, found["cpu"])
        self.memory = max(self.memory, found["memory"])
        self.n = found["n"]
        self.negative_flips = found.get("negative_flips")


def run_side(name: str, old: Path, new: Path) -> None:
    found = SIDES[name](old, new)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**found, "cpu": used.ru_utime + used.ru_stime, "memory": peak_memory()}))


def peak_memory() -> int:
    """The largest resident set of this process. ru_maxrss would also count the parent's before exec."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def measure(sides: tuple[str, ...], files: tuple[Path, Path], repetitions: int) -> list[Run]:
    """The sides taking turns; they must find the same number of flips."""
    runs = [Run(side) for side in sides]
    for _ in range(repetitions):
        for run in runs:
            run.repeat(*files)
    flips = {run.negative_flips for run in runs if run.negative_flips is not None}
    if len(flips) != 1 or len({run.n for run in runs}) != 1:
        raise SystemExit(f"the sides disagree: {runs}")
    for run in runs:
        print(
            f"  {run.side:<18} call {run.call:7.2f} s   process {run.process:7.2f} s   "
            f"CPU {run.cpu:7.2f} s   peak {run.memory / GB:5.2f} GB",
            flush=True,
        )
    return runs


# --- the data


def logs(rows: int) -> tuple[Path, Path]:
    """Two logs of the same ids, each in an order of its own: right on 80%, two thirds of the errors shared."""
    files = DATA / f"log_{rows}_old.parquet", DATA / f"log_{rows}_new.parquet"
    if all(file.exists() for file in files):
        return files
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(SEED)
    label = random.integers(0, CLASSES, rows, dtype=np.int16)
    old = _mistaken(label, 0.2, random)
    new = np.where(random.random(rows, dtype=np.float32) < 0.75, old, _mistaken(label, 0.15, random))
    for file, prediction in zip(files, (old, new), strict=True):
        order = random.permutation(rows)
        columns = {"id": order, "label": label[order], "prediction": prediction[order]}
        _write(iter([pa.table(columns).to_batches()[0]]), file)
    return files


def _mistaken(label: Any, share: float, random: Any) -> Any:
    import numpy as np

    other = random.integers(0, CLASSES, len(label), dtype=np.int16)
    return np.where(random.random(len(label), dtype=np.float32) < share, other, label)


def scored(rows: int) -> tuple[Path, Path, Path]:
    """Two files of float16 logits in the same order, and the second one again, shuffled."""
    files = tuple(DATA / f"logits_{rows}_{name}.parquet" for name in ("old", "new", "new_shuffled"))
    if not all(file.exists() for file in files):
        import numpy as np

        random = np.random.default_rng(SEED)
        label = random.integers(0, CLASSES, rows, dtype=np.int16)
        old = np.empty((rows, CLASSES), np.float16)
        new = np.empty((rows, CLASSES), np.float16)
        for start in range(0, rows, 100_000):
            part = slice(start, start + 100_000)
            shape = old[part].shape
            logits = random.standard_normal(shape, dtype=np.float32)
            logits[np.arange(shape[0]), label[part]] += 3.5
            old[part] = logits
            new[part] = 0.9 * logits + 0.4 * random.standard_normal(shape, dtype=np.float32)
        ids = np.arange(rows)
        _write(_scored_batches(ids, label, old), files[0])
        _write(_scored_batches(ids, label, new), files[1])
        _write(_scored_batches(random.permutation(rows), label, new), files[2])
    return files[0], files[1], files[2]


def _scored_batches(order: Any, label: Any, logits: Any) -> Iterator[Any]:
    import pyarrow as pa

    for start in range(0, len(order), 100_000):
        rows = order[start : start + 100_000]
        values = logits[rows]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), CLASSES).cast(pa.list_(pa.float16()))
        prediction = values.argmax(axis=1).astype("int16")
        yield pa.RecordBatch.from_arrays(
            [pa.array(rows), pa.array(label[rows]), pa.array(prediction), lists],
            names=["id", "label", "prediction", "logits"],
        )


def _write(batches: Iterator[Any], file: Path) -> None:
    """As `Predictions.write` does, but a batch at a time: zstd, no dictionaries of floats; beside, then renamed."""
    import pyarrow.parquet as pq

    beside = file.with_suffix(".part")
    first = next(batches)
    compact = [name for name in first.schema.names if name != "logits"]
    with pq.ParquetWriter(beside, first.schema, compression="zstd", use_dictionary=compact) as writer:
        writer.write_batch(first, row_group_size=100_000)
        for batch in batches:
            writer.write_batch(batch, row_group_size=100_000)
    beside.replace(file)


def make(name: str, rows: int) -> Any:
    """The files of a kind, made in a child process so that this one stays small."""
    DATA.mkdir(exist_ok=True)
    subprocess.run([sys.executable, __file__, "--make", name, str(rows)], check=True)
    return {"logs": logs, "scored": scored}[name](rows)


# --- the figures


@dataclass(frozen=True)
class Line:
    """One line of the table; `target` None is for information."""

    figure: str
    measured: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target


def small_logs(rows: int, repetitions: int) -> tuple[list[Line], list[Run]]:
    print(f"two shuffled logs of {rows:,} rows", flush=True)
    runs = measure(("flipguard_compare", "duckdb_join", "pandas_merge"), make("logs", rows), repetitions)
    ours, bare, pandas = runs
    size = f"{rows // 10**6} M rows"
    return [
        Line(f"{size}: time / DuckDB's bare join-and-count (call)", ours.call / bare.call, "x", 1.3),
        Line(f"{size}: the same, whole process", ours.process / bare.process, "x"),
        Line(f"{size}: the same, CPU seconds", ours.cpu / bare.cpu, "x"),
        Line(f"{size}: peak memory", ours.memory / GB, "GB", 1.5),
        Line(f"{size}: pandas merge-and-groupby / time (call)", pandas.call / ours.call, "x", 2.5, at_least=True),
        Line(f"{size}: the same, whole process", pandas.process / ours.process, "x"),
        Line(f"{size}: peak memory / pandas'", ours.memory / pandas.memory, "x", 0.5),
    ], runs


def large_logs(rows: int) -> tuple[list[Line], list[Run]]:
    print(f"two shuffled logs of {rows:,} rows", flush=True)
    runs = measure(("flipguard_compare", "duckdb_join"), make("logs", rows), 1)
    ours, bare = runs
    return [
        Line(f"{rows // 10**6} M rows: peak memory", ours.memory / GB, "GB", 6.0),
        Line(f"{rows // 10**6} M rows: time / DuckDB's bare join-and-count (call)", ours.call / bare.call, "x"),
    ], runs


def logits(rows: int, repetitions: int) -> tuple[list[Line], list[Run]]:
    old, new, shuffled = make("scored", rows)
    lines, runs = [], []
    for order, second, target in (("same order", new, 0.5), ("shuffled", shuffled, None)):
        print(f"two files of {rows:,} x {CLASSES} float16 logits, {order}", flush=True)
        found = measure(("flipguard_compare", "read_only"), (old, second), repetitions if target else 1)
        ours, reading = found
        size = f"{rows // 10**6} M x {CLASSES} logits, {order}"
        lines.append(
            Line(f"{size}: speed / that of reading (call)", reading.call / ours.call, "x", target, at_least=True)
        )
        lines.append(Line(f"{size}: peak memory", ours.memory / GB, "GB"))
        runs += found
    return lines, runs


def table(lines: list[Line]) -> str:
    width = max(len(line.figure) for line in lines)
    rows = [
        f"| {'figure':<{width}} | target   | measured | met |",
        f"|{'-' * (width + 2)}|----------|----------|-----|",
    ]
    for line in lines:
        target = "" if line.target is None else f"{'≥' if line.at_least else '≤'} {line.target:g} {line.unit}"
        met = {None: "", True: "yes", False: "NO"}[line.met]
        rows.append(f"| {line.figure:<{width}} | {target:<8} | {f'{line.measured:.2f} {line.unit}':>8} | {met:<3} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one repetition, nothing large")
    parser.add_argument("--large", action=argparse.BooleanOptionalAction, help="100 million rows (if the disk allows)")
    parser.add_argument("--only", choices=("logs", "large", "logits"), help="one part")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--side", nargs=3, metavar=("SIDE", "OLD", "NEW"), help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, metavar=("KIND", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_side(options.side[0], Path(options.side[1]), Path(options.side[2]))
        return 0
    if options.make:
        {"logs": logs, "scored": scored}[options.make[0]](int(options.make[1]))
        return 0
    return benchmark(options)


def benchmark(options: argparse.Namespace) -> int:
    DATA.mkdir(exist_ok=True)
    scale = 10 if options.quick else 1
    repetitions = 1 if options.quick else options.repetitions
    large = options.large if options.large is not None else not options.quick
    if large and shutil.disk_usage(DATA).free < LARGE_BYTES:
        print("the 100-million-row run is left out: too little disk space")
        large = False
    parts = {
        "logs": lambda: small_logs(20_000_000 // scale, repetitions),
        "large": lambda: large_logs(100_000_000),
        "logits": lambda: logits(10_000_000 // scale, repetitions),
    }
    if not large:
        del parts["large"]
    lines: list[Line] = []
    runs: list[Run] = []
    for name, part in parts.items():
        if options.only in (None, name):
            more, found = part()
            lines += more
            runs += found
    print(f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n\n{table(lines)}")
    if options.json:
        written = [{**asdict(line), "met": line.met} for line in lines]
        options.json.write_text(json.dumps({"figures": written, "runs": [asdict(run) for run in runs]}, indent=2))
    return 0 if all(line.met is not False for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
