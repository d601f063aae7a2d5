"""Publications of an application: a stream's name and a value to the record that the server registers."""

from ropewalk.channels.texts import json_bytes
from ropewalk.model.messages import SERVER_TYPES, Publication


def stream_name(stream: str) -> str:
    """Raises TypeError or ValueError for what names no stream."""
    if not isinstance(stream, str):
        raise TypeError(f"a stream's name is a string, not {stream!r}")
    if not stream.encode():  # raises for half a surrogate pair
        raise ValueError("a stream's name cannot be empty")
    return stream


def publication(stream: str, data: object, *, exclude_socket: str, transient: bool, uid: str, type: str) -> Publication:
    """Raises TypeError or ValueError for what cannot be published."""
    if type in SERVER_TYPES:
        raise ValueError(f"a message cannot be of type {type}, which is what the server itself says: take another word")
    payload = json_bytes(data, f"the message for {stream_name(stream)}")
    return Publication(stream, payload, exclude_socket, type, transient, uid)
