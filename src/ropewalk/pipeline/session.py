"""The Spark session of our jobs and tests: settings measured for small machines, and our own JVM if none is running.

Under spark-submit the cluster's settings win: its command line overrides these.
"""

import logging
import os
import sys
from pathlib import Path
from socketserver import BaseServer
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession

from ropewalk.pipeline.jvm import NICE, Jvm, announced, start_jvm

# The pipe to the JVM must stay open as long as this process may ask it for a session.
_running: list[Jvm] = []

# A shuffle of the default 200 parts makes every small stateful batch several times slower.
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.python.filterPushdown.enabled": "true",
}

# For one driver on one machine, mostly the server's too: live traffic has priority. The usual checkpoint manager forks
# some twenty processes for each micro-batch on a local disk; this one does not, but lets two drivers on one checkpoint collide
# unnoticed, which a cluster must not risk.
_LOCAL = {
    NICE: "5",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def settings(**conf: str) -> dict[str, str]:
    """What a session of ours is started with; `conf` wins."""
    merged = _SETTINGS | conf
    return (_LOCAL | merged) if merged["spark.master"].startswith("local") else merged


def spark_session(app: str, **conf: str) -> SparkSession:
    """The session of this process; made, with its JVM, at the first call. `conf` are Spark's own names and win over ours."""
    _forget_dead_jvm()
    builder = SparkSession.builder.appName(app)
    if announced(os.environ) or SparkContext._active_spark_context is not None:
        return _configured(builder, conf).getOrCreate()
    wanted = settings(**conf)
    _start(wanted)
    session = _configured(builder, wanted).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def lost_jvm() -> str:
    """Why Spark cannot be used; "" while its JVM runs, or if we did not start it."""
    code = _running[-1].exit_code if _running else None
    return "" if code is None else f"Spark's JVM has ended (exit code {code})"


def silence_py4j() -> None:
    """It logs a traceback for every call to a JVM that has died, by its own logger or by the root. The caller reports the
    death of the JVM in one line."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)  # a filter of the root logger applies only to its own records


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def silence_accumulators() -> None:
    """The same of PySpark's server for accumulators, whose connection ends with the JVM."""
    setattr(AccumulatorTCPServer, "handle_error", _handle_error)  # noqa: B010  # mypy refuses the plain assignment


def _handle_error(server: AccumulatorTCPServer, request: Any, client_address: Any) -> None:
    if not isinstance(sys.exception(), EOFError):
        BaseServer.handle_error(server, request, client_address)


def _forget_dead_jvm() -> None:
    """PySpark keeps what it knows of its JVM in class attributes, for good; the next session wants another one."""
    if not lost_jvm():
        return
    _running.pop().abandon()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown(raise_exception=False)  # its threads and ports on this side
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _start(wanted: dict[str, str]) -> None:
    """The JVM outlives a stopped session and serves the next one: PySpark keeps its gateway for the life of the process."""
    if SparkContext._gateway is not None:
        return
    # Driver and executors run the same Python unless told otherwise: there the package is installed.
    os.environ.setdefault("PYSPARK_PYTHON", wanted.get("spark.pyspark.python", sys.executable))
    local = wanted["spark.master"].startswith("local")
    jvm = start_jvm(wanted, {"SPARK_LOCAL_IP": "127.0.0.1", **os.environ} if local else os.environ)
    _running.append(jvm)
    silence_py4j()
    silence_accumulators()
    jvm.announce()
    try:
        SparkContext._ensure_initialized()
    finally:
        jvm.conceal()


def _configured(builder: SparkSession.Builder, conf: dict[str, str]) -> SparkSession.Builder:
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder
