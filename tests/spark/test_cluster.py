"""A Spark standalone cluster: a master and two workers as processes, and a driver that reads and publishes."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.pipeline.jvm import command_line, find_java, spark_home
from tests.server import RunningServer
from tests.spark.java import PROCESS_TIMEOUT, START_AND_RUN_SECONDS, java_home
from tests.spark.journal import kept, publish_all

pytestmark = [pytest.mark.tier("all"), pytest.mark.timeout(PROCESS_TIMEOUT)]

DRIVER = """
import sys
from ropewalk.pipeline.session import spark_session

master, url = sys.argv[1:]
spark = spark_session("cluster", **{
    "spark.master": master,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
})
rows = spark.read.format("ropewalk").option("url", url).option("subscribePattern", "cluster/in/.*").load().repartition(2)
rows.write.format("ropewalk").mode("append").option("url", url).option("stream", "cluster/out").save()
# The driver is listed too.
print("executors", len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1)
spark.stop()
"""


class Daemon:
    """A process of the Spark cluster. Its log is its standard error."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        self.log_file = home / f"{name}.log"
        # The HTTP endpoint for submissions has a fixed port, which another test run may use.
        options = ["-Dspark.master.rest.enabled=false", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java = command_line(find_java(), spark_home() / "jars", "256m", options)
        java = [part for part in java if not part.startswith("-Dlog4j2.")]
        environ = {**os.environ, "SPARK_HOME": str(spark_home()), "JAVA_HOME": java_home(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        environ |= {"SPARK_WORKER_DIR": str(home / "work"), "SPARK_SCALA_VERSION": "2.13"}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen([*java, *arguments], stdout=log, stderr=log, env=environ, start_new_session=True)

    def await_line(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + START_AND_RUN_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if match := re.search(pattern, self.log_file.read_text(errors="replace")):
                return match
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in:\n{self.log_file.read_text(errors='replace')}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with two workers of one core each."""
    with contextlib.ExitStack() as running:

        def start(name: str, *arguments: str) -> Daemon:
            daemon = Daemon(tmp_path, name, *arguments)
            running.callback(daemon.stop)
            return daemon

        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        main = start("master", "org.apache.spark.deploy.master.Master", *where)
        url = main.await_line(r"spark://127\.0\.0\.1:\d+")[0]
        size = ("--cores", "1", "--memory", "600m")
        workers = [start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *where, *size, url) for number in (1, 2)]
        for worker in workers:
            worker.await_line("Successfully registered with master")
        yield url


def test_standalone_cluster_reads_and_publishes_each_row_once(master: str, server: RunningServer) -> None:
    publish_all(server, [(f"cluster/in/{n % 4}", n) for n in range(80)])

    done = subprocess.run(
        [sys.executable, "-c", DRIVER, master, server.url],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_AND_RUN_SECONDS,
    )

    assert "executors 2" in done.stdout, done.stderr
    assert sorted(kept(server, "cluster/out")) == list(range(80))
