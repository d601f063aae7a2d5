"""The whole road in one command: a server, live traffic, the archive, the figures by minute, an audit, a table and a picture.

Run it with `make demo`, or: python examples/whole_road.py --seconds 60 --out whole_road
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a picture in a file, no window

from matplotlib import pyplot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ropewalk.cli.main import main as ropewalk
from ropewalk.client import Draft, Publisher
from ropewalk.pipeline.session import spark_session

STREAMS = ("orders", "payments", "chat/lobby", "chat/support", "sensors/1", "sensors/2")
BATCHES_A_SECOND = 20
BUCKETS = 30


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long traffic is made (default %(default)s)")
    parser.add_argument("--rate", type=int, default=400, help="messages a second (default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("whole_road"), help="a new directory for everything (default %(default)s)"
    )
    wanted = parser.parse_args(argv)
    out = wanted.out.absolute()
    if out.exists():
        parser.error(f"{out} is there already: name another directory with --out, or remove it")
    out.mkdir(parents=True)

    with server(out) as url:
        print(f"server on {url}; publishing for {wanted.seconds:.0f} s")
        asyncio.run(traffic(url, wanted.seconds, wanted.rate))
        jobs = ["archive", "rollup", "audit", "--available-now"]
        code = ropewalk(["pipeline", "run", *jobs, "--url", url, "--state_dir", str(out), "--config_path", ""])
    rows = archived(out)
    print(table(rows))
    picture(rows, wanted.seconds, out / "messages.png")
    print(f"picture in {out / 'messages.png'}")
    return code


@contextmanager
def server(out: Path) -> Iterator[str]:
    """A server with a journal, and its address."""
    command = [sys.executable, "-m", "ropewalk", "serve", "--public", "--port", "0", "--data_dir", str(out / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=out) as process:
        assert process.stdout is not None
        try:
            said = re.search(r"listening on (\S+)", process.stdout.readline())
            if said is None:
                raise SystemExit("the server did not start")
            yield said[1]
        finally:
            process.terminate()


async def traffic(url: str, seconds: float, rate: int) -> None:
    """Publications in small batches, more of them in the middle; each has its send time."""
    chance, began, sent = random.Random(1), time.monotonic(), 0
    async with Publisher(url) as publisher:
        while (passed := time.monotonic() - began) < seconds:
            swell = 0.5 + 2 * (passed / seconds) * (1 - passed / seconds)
            size = max(1, round(rate * swell / BATCHES_A_SECOND))
            await publisher.publish_batch([draft(chance, sent + n) for n in range(size)])
            sent += size
            await asyncio.sleep(max(0.0, began + passed + 1 / BATCHES_A_SECOND - time.monotonic()))


def draft(chance: random.Random, number: int) -> Draft:
    return Draft(chance.choice(STREAMS), {"n": number, "sent": time.time(), "text": "x" * chance.randrange(20, 200)})


def archived(out: Path) -> DataFrame:
    """The archive, with how long each publication took from its sender into the log."""
    from deltalake import DeltaTable

    files = DeltaTable(out / "archive").file_uris()
    rows = spark_session("ropewalk").read.option("basePath", str(out / "archive")).parquet(*files).where("event = 'publish'")
    sent = F.get_json_object(F.col("value").cast("string"), "$.sent").cast("double")
    return rows.withColumn("milliseconds", (F.col("timestamp").cast("double") - sent) * 1000)


def table(rows: DataFrame) -> str:
    figures = rows.groupBy("stream").agg(
        F.count("*").alias("messages"),
        F.sum(F.octet_length("value")).alias("bytes"),
        F.percentile("milliseconds", 0.5).alias("p50"),
        F.percentile("milliseconds", 0.99).alias("p99"),
    )
    lines = [f"{'stream':<16}{'messages':>10}{'bytes':>12}{'p50 ms':>9}{'p99 ms':>9}"]
    for row in figures.orderBy("stream").collect():
        lines.append(f"{row.stream:<16}{row.messages:>10,}{row.bytes:>12,}{row.p50:>9.1f}{row.p99:>9.1f}")
    return "\n".join(lines)


def picture(rows: DataFrame, seconds: float, path: Path) -> None:
    """How many messages came above, and their latency below, over the time of the run."""
    width = max(1.0, seconds / BUCKETS)
    bucket = (F.floor(F.col("timestamp").cast("double") / width) * width).alias("bucket")
    found = rows.groupBy(bucket).agg(
        F.count("*").alias("messages"), F.percentile("milliseconds", F.array(F.lit(0.5), F.lit(0.99))).alias("latency")
    )
    buckets = found.orderBy("bucket").collect()
    times = [row.bucket - buckets[0].bucket for row in buckets]
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    above.bar(times, [row.messages for row in buckets], width=width * 0.9, align="edge")
    above.set_ylabel(f"messages in {width:g} s")
    for place, name in enumerate(("p50", "p99")):
        below.plot([time + width / 2 for time in times], [row.latency[place] for row in buckets], marker=".", label=name)
    below.set(xlabel="seconds", ylabel="sender to log, ms", ylim=(0, None))
    below.legend()
    figure.suptitle(f"{sum(row.messages for row in buckets):,} messages from a publisher into the archive")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
