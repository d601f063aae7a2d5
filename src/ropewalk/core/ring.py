"""Where a key belongs on a ring, and a ring's nodes as written in settings.

The mapping from a partition key to its shard must never change: the journal, the archive and every reader compute it.
"""

import re
from zlib import crc32

from ropewalk.model.ring import RingMember

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]+\]", re.ASCII)


def locate_shard(key: str, shards: int) -> int:
    return crc32(key.encode()) % shards


def parse_partition(name: str) -> str:
    """The partition key of a stream on a ring: the text in the first braces of its name, or the whole name. It is derived from
    the name because a subscriber knows nothing else."""
    begin = name.find("{")
    end = name.find("}", begin) if begin >= 0 else -1
    return name[begin + 1 : end] if end > begin + 1 else name


def locate_stream(name: str, shards: int) -> int:
    """The shard of a stream or a session on a ring."""
    return locate_shard(parse_partition(name), shards)


def parse_member(text: str) -> RingMember:
    """Parses name=host:port; raises ValueError."""
    name, equals, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not equals or not _NAME.fullmatch(name) or not _HOST.fullmatch(host) or not _is_port(port):
        raise ValueError(f"a node is written name=host:port, such as a=10.0.0.1:8080, not {text!r}")
    return RingMember(name, address)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
