"""How a subscription is named on the wire: identifiers for public streams, signed streams and channels."""

from typing import Any

import msgspec

PUBSUB = "$pubsub"


def public(stream: str) -> str:
    return _text({"channel": PUBSUB, "stream_name": stream})


def signed(signed_name: str) -> str:
    return _text({"channel": PUBSUB, "signed_stream_name": signed_name})


def channel(name: str, params: dict[str, Any]) -> str:
    return _text({"channel": name, **params})


def _text(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()
