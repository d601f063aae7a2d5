"""Maps a partition key to its shard. Must never change: the journal, the archive and every reader compute the same."""

from zlib import crc32


def shard_of(key: str, shards: int) -> int:
    return crc32(key.encode()) % shards
