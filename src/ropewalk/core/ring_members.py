"""Reads a node of a ring as people write it: name=host:port."""

import re

from ropewalk.model.ring import RingMember

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]+\]", re.ASCII)


def member_of(text: str) -> RingMember:
    """Raises ValueError."""
    name, equals, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not equals or not _NAME.fullmatch(name) or not _HOST.fullmatch(host) or not _is_port(port):
        raise ValueError(f"a node is written name=host:port, such as a=10.0.0.1:8080, not {text!r}")
    return RingMember(name, address)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
