"""Found by Spark itself, so that the format `ropewalk_archive` needs no registration. Nothing else lives here."""

from ropewalk.pipeline.archive.sink import ArchiveSource as DefaultSource

__all__ = ["DefaultSource"]
