"""The Java side of a Spark: started here, and heard only where it tells of an error."""

import os
import sys
from collections import deque
from threading import Thread
from typing import Any

WAITING = "org.apache.spark.scheduler.TaskSchedulerImpl"
"""Warns when a job waits for machines, which nothing else says."""

REASON = "Reason: "


class NotBegun(Exception):
    """There is no session to be had; the message is the reason, on one line."""


def begin(master: str) -> Any:
    """A session of this process's own on the master, with settings from where Spark looks for them."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setMaster(master).setAppName("flipguard").set("spark.ui.showConsoleProgress", "false")
    heard = _Heard()
    # A JVM outlives the sessions of its process: there may be one.
    launch = SparkContext._gateway is None
    try:
        if launch:
            SparkContext(conf=conf, gateway=_launched(conf, heard))
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        # The JVM's errors come as several types; each means that there is no session.
        raise NotBegun(heard.reason() or first_line(error)) from error
    if launch:
        _quieten(spark.sparkContext)
        heard.passes_on = True
    return spark


def first_line(error: BaseException) -> str:
    """What an error of Spark's says before its traces; a Java error is named on the line after the call."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[1].startswith(": "):
        lines = [lines[1].removeprefix(": ")]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]


def _launched(conf: Any, heard: "_Heard") -> Any:
    from pyspark.java_gateway import launch_gateway

    reading, writing = os.pipe()
    heard.begin(reading)
    try:
        return launch_gateway(conf, {"stderr": writing})
    finally:
        os.close(writing)


def _quieten(context: Any) -> None:
    """Errors alone, unless Spark's settings ask for more."""
    if not context.getConf().contains("spark.log.level"):
        context.setLogLevel("ERROR")
        log4j = context._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(WAITING, log4j.Level.WARN)


class _Heard:
    """What the JVM writes on stderr: kept while it starts, passed on afterwards."""

    def __init__(self) -> None:
        self.passes_on = False
        self._kept: deque[str] = deque(maxlen=100)
        self._thread: Thread | None = None

    def begin(self, reading: int) -> None:
        self._thread = Thread(target=self._hear, args=(reading,), daemon=True)
        self._thread.start()

    def _hear(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                printable = "".join(c for c in line if c.isprintable())
                if self.passes_on:
                    sys.stderr.write(f"{printable}\n")
                else:
                    self._kept.append(printable.strip())

    def reason(self) -> str | None:
        """Why there is no session, where the JVM says so better than its errors do: of a master that does not speak as
        one the log alone tells, and a JVM that cannot start leaves nothing but its last line."""
        if self._thread is None:
            return None
        self._thread.join(timeout=1.0)
        said = [line for line in self._kept if line]
        found = [line.partition(REASON)[2] for line in said if REASON in line]
        if not found and not self._thread.is_alive():
            found = said
        return found[-1].rstrip(".") if found else None
