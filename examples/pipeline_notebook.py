"""A look at a running server's journal, in cells as a notebook has them: read, count, watch, publish back.

Start a server with `ropewalk serve --public --data_dir data`, then: python examples/pipeline_notebook.py
Editors that know `# %%` run it cell by cell.
"""

# %% A session with settings for a small machine. Nothing has to be registered: Spark finds the format by its name.
import sys
import tempfile

from pyspark.sql import functions as F

from ropewalk.pipeline.session import spark_session

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
spark = spark_session("notebook")
checkpoint = tempfile.mkdtemp()  # where a query remembers how far it is; keep it, and the query goes on tomorrow

# %% Publish: a DataFrame with the columns `stream` and `value` is enough.
readings = spark.range(100).select(
    F.concat(F.lit("sensors/"), F.col("id") % 3).alias("stream"),
    F.to_json(F.struct(F.col("id").alias("n"), (F.rand(seed=7) * 40).alias("celsius"))).alias("value"),
)
readings.write.format("ropewalk").option("url", url).mode("append").save()

# %% Read everything that was ever registered, at the positions that live clients see.
journal = spark.read.format("ropewalk").option("url", url).load()
published = journal.where("event = 'publish'").withColumn("text", F.col("value").cast("string"))
published.groupBy("stream").agg(F.count("*").alias("messages"), F.max("offset").alias("newest")).orderBy("stream").show()

# %% The same as a stream: hot readings go to a stream of their own, exactly once. Run this cell again: nothing comes twice.
hot = (
    spark.readStream.format("ropewalk")
    .options(url=url, subscribePattern="sensors/.*", startingOffsets="earliest")
    .load()
    .where("event = 'publish'")
    .withColumn("celsius", F.get_json_object(F.col("value").cast("string"), "$.celsius").cast("double"))
    .where("celsius > 35")
    .select(F.lit("alarms/hot").alias("stream"), F.to_json(F.struct("stream", "offset", "celsius")).alias("value"))
)
sink = hot.writeStream.format("ropewalk").option("url", url).trigger(availableNow=True)
query = sink.option("checkpointLocation", checkpoint).start()
query.awaitTermination()

# %% Anybody who subscribes to that stream has them now.
alarms = spark.read.format("ropewalk").options(url=url, subscribe="alarms/hot").load()
print(f"{alarms.count()} hot readings published")
