"""A Spark to compare on: a session for a URL, and its tables by name or path."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flipguard._reach import unreachable
from flipguard.comparison.jvm import NotBegun, begin, first_line
from flipguard.comparison.result import Comparison
from flipguard.comparison.tables import compare_tables
from flipguard.types import InputError, MissingExtra

SCHEME = "spark://"
_OTHER_MASTER = re.compile(r"local(-cluster)?(\[.*\])?$|yarn$|k8s://")
_ENDINGS = (".parquet", ".pq")


def compare_on_spark(url: str, old: str, new: str, **options: Any) -> Comparison:
    """Compare two tables of a Spark, or two Parquet paths that it reads; the options are those of `compare_tables`.

    url: `spark://HOST:PORT`, or a master that Spark writes otherwise after the same scheme: `spark://local[2]`,
    `spark://yarn`. Further settings come from where Spark looks for them, such as `spark-defaults.conf`.
    """
    with session(url) as spark:
        tables = [_table(spark, name) for name in (old, new)]
        return compare_tables(*tables, names=(old, new), **options)


def master(url: str) -> str:
    """What Spark calls the cluster.

    >>> master("spark://local[2]"), master("spark://head:7077"), master("spark://localhost:7077")
    ('local[2]', 'spark://head:7077', 'spark://localhost:7077')
    """
    rest = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not rest:
        raise InputError(f"a Spark is named as spark://HOST:PORT or spark://local[2], not as '{url}'.")
    return rest if _OTHER_MASTER.match(rest) else url


def check_answers(url: str) -> None:
    """Spark itself tries for a minute, and tells of every try. Of several masters, one is enough."""
    reasons = []
    for address in url.removeprefix(SCHEME).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"a Spark is named as spark://HOST:PORT or spark://local[2], not as '{url}'.")
        reasons.append(unreachable(host, int(port)))
    if None not in reasons:
        raise InputError(f"{url} cannot be reached: {reasons[0]}.")


@contextmanager
def session(url: str) -> Iterator[Any]:
    """The session that runs in this process, or a new one that ends with the block."""
    wanted = master(url)
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a comparison on Spark needs {error.name}: pip install 'flipguard[spark]'") from error
    there = SparkSession.getActiveSession()
    if there is None and wanted.startswith(SCHEME):
        check_answers(wanted)
    with warnings.catch_warnings():
        # Spark takes no pandas here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        try:
            spark = there or begin(wanted)
        except NotBegun as error:
            raise InputError(f"{url} gives no session: {error}.") from error
        try:
            yield spark
        except PySparkException as error:
            raise InputError(f"Spark cannot compare the tables: {first_line(error)}.") from error
        finally:
            if there is None:
                spark.stop()


def _table(spark: Any, name: str) -> Any:
    """A table by its name in the catalogue, or Parquet files by their path; scores alone give predictions."""
    path = "/" in name or name.lower().endswith(_ENDINGS)
    rows = spark.read.parquet(name) if path else spark.table(name)
    scores = next((column for column in ("logits", "probabilities") if column in rows.columns), None)
    if "prediction" in rows.columns or scores is None:
        return rows
    from pyspark.sql import functions

    return rows.withColumn("prediction", functions.expr(f"array_position({scores}, array_max({scores})) - 1"))
