"""Cold history as the server reads it: Parquet files named by a Delta log, and what of the journal is not in them yet."""

from ropewalk.adapters.archives.delta import DeltaArchive

__all__ = ["DeltaArchive"]
