"""One JVM and one session for all tests here: starting them costs more than most of the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ropewalk.pipeline.jvm import NICE
from ropewalk.pipeline.session import spark_session
from tests.server import RunningServer, running_server
from tests.spark.journal import FLAGS

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.needs_java)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Two cores, and tasks that may fail twice. Left running for the next test file; it ends with this process."""
    session = spark_session(
        "tests",
        **{
            "spark.master": "local[2,3]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            NICE: "1",  # it gives way to other tests, and does not wait until they are over
            # Tests are short: code that is compiled fast beats fast code.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    # Tests make tasks fail on purpose, and Spark would log each of them at length.
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a journal, shared by the tests of a file: each takes streams of its own."""
    with running_server(*FLAGS, "--data_dir", str(tmp_path_factory.mktemp("data"))) as running:
        yield running
