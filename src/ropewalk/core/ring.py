"""Maps a partition key to its shard. Must never change: the journal, the archive and every reader compute the same."""

from zlib import crc32


def shard_of(key: str, shards: int) -> int:
    return crc32(key.encode()) % shards


def partition_of(name: str) -> str:
    """The partition key that a stream has on a ring of nodes: what its name has in the first braces, or the whole name. It has
    to follow from the name, because that is all that a subscriber knows."""
    begin = name.find("{")
    end = name.find("}", begin) if begin >= 0 else -1
    return name[begin + 1 : end] if end > begin + 1 else name


def place_of(name: str, shards: int) -> int:
    """The shard of a stream or a session on a ring."""
    return shard_of(partition_of(name), shards)
