"""Blocks of the pages on Spark and on the archive run as they are written."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.archive_writer import Scribe, message
from tests.docs.pages import ROOT, blocks
from tests.server import RunningServer, running_server
from tests.spark.journal import FLAGS, call, kept, publish_all
from tests.waiting import until

ARCHIVE_PAGE = ROOT / "docs" / "topics" / "archive.md"
SPARK_PAGE = ROOT / "docs" / "how-to" / "spark.md"

pytestmark = pytest.mark.tier("all")


def block_with(page: Path, text: str) -> str:
    [found] = [block.text for block in blocks(page) if block.language == "python" and text in block.text]
    return found


def test_spark_sql_reads_the_files_of_the_archive(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data" / "pipeline" / "archive"
    Scribe(root).archive([message("a", offset) for offset in range(1, 4)], joined=[("a", "sid")])
    # Relative paths are those of the JVM, which was started elsewhere.
    source = block_with(ARCHIVE_PAGE, "createOrReplaceTempView").replace("data/pipeline/archive", str(root))

    exec(compile(source, str(ARCHIVE_PAGE), "exec"), {"spark": spark})

    assert "|publish|  3|" in capsys.readouterr().out


async def test_copies_and_counts_are_published(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as server:
        publish_all(server, [("chat/1", n) for n in range(5)] + [("other", 1)])
        names: dict[str, object] = {"spark": spark}
        try:
            for text in ("checkpoint-copy", "checkpoint-stats"):
                source = block_with(SPARK_PAGE, text).replace("http://127.0.0.1:8080", server.url)
                exec(compile(source.replace(text, str(tmp_path / text)), str(SPARK_PAGE), "exec"), names)
            await until(
                lambda: streams(server) == {"chat/1", "other", "copy/chat/1", "stats/chat/1"},
                lambda: [(streams(server), query.exception()) for query in spark.streams.active],
            )
        finally:
            for query in spark.streams.active:
                query.stop()

        assert kept(server, "copy/chat/1") == kept(server, "chat/1")
        assert kept(server, "stats/chat/1") == [{"stream": "chat/1", "count": 5}]


def streams(server: RunningServer) -> set[str]:
    return {each["stream"] for each in call(f"{server.url}/api/streams")["streams"]}
