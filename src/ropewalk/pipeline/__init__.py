"""The data pipeline: Spark reads the journal, keeps the archive and publishes back, under the positions that live clients see.

Nothing here is imported by the server. PySpark finds the source and the sink by the top-level module `pyspark_ropewalk`.
"""

from ropewalk.pipeline.context import BatchOptions, StreamOptions
from ropewalk.pipeline.registry import job

__all__ = ["BatchOptions", "StreamOptions", "job"]
