"""Spark looks for modules named `pyspark_…` and finds the format `ropewalk` here, without any registration."""

from ropewalk.pipeline.source import RopewalkDataSource as DefaultSource

__all__ = ["DefaultSource"]
