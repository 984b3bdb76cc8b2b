"""A Spark to compare on: a session for a URL, and its tables by name or path."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flipguard.comparison.result import Comparison
from flipguard.comparison.tables import compare_tables
from flipguard.types import InputError, MissingExtra

SCHEME = "spark://"
_MASTERS = ("local", "yarn", "k8s://")
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

    >>> master("spark://local[2]"), master("spark://head:7077")
    ('local[2]', 'spark://head:7077')
    """
    rest = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME) or not rest:
        raise InputError(f"a Spark is named as spark://HOST:PORT or spark://local[2], not as '{url}'.")
    return rest if rest.startswith(_MASTERS) else url


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
    try:
        builder = SparkSession.builder.master(wanted).appName("flipguard")
        spark = there or builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    except Exception as error:
        # The JVM's errors come as several types; each means that there is no session.
        raise InputError(f"{url} cannot be reached: {_first_line(error)}.") from error
    try:
        yield spark
    except PySparkException as error:
        raise InputError(f"Spark cannot compare the tables: {_first_line(error)}.") from error
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


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
