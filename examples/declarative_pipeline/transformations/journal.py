"""The journal as a table that every run brings up to date, and a stream of alarms published back."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

URL = os.environ.get("ROPEWALK_URL", "http://127.0.0.1:8080")
spark = SparkSession.active()


def journal() -> DataFrame:
    reader = spark.readStream.format("ropewalk").options(url=URL, startingOffsets="earliest", subscribePattern="sensors/.*")
    return reader.load().where("event = 'publish'")


@dp.table
def publications() -> DataFrame:
    """Every publication once, with its position."""
    return journal().select("stream", "epoch", "offset", "timestamp", F.col("value").cast("string").alias("text"))


dp.create_sink("alarms", "ropewalk", {"url": URL, "stream": "alarms"})


@dp.append_flow(target="alarms")
def hot() -> DataFrame:
    """Publishes readings above the limit to the stream `alarms`."""
    celsius = F.get_json_object(F.col("value").cast("string"), "$.celsius").cast("double")
    return (
        journal().where(celsius > 35).select(F.to_json(F.struct("stream", "offset", celsius.alias("celsius"))).alias("value"))
    )
