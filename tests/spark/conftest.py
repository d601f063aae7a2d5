"""One JVM, one Spark session and one server for all tests here."""

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
    """Two cores, and tasks that may fail twice. It ends with this process."""
    session = spark_session(
        "tests",
        **{
            "spark.master": "local[2,3]",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            NICE: "1",  # a lower priority than other tests, but not by much
            # For short tests, fast compilation matters more than fast code.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    # Tests make tasks fail on purpose, and Spark would log each failure at length.
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a journal, shared by all tests: each uses streams of its own."""
    with running_server(*FLAGS, "--data_dir", str(tmp_path_factory.mktemp("data"))) as running:
        yield running
