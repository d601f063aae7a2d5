"""The stream that a program names, by its name or its key. What can be neither is a mistake of the program."""

from ropewalk.core.signatures import unverified_name
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.stream_keys import key_of, name_of


def key_given(stream: object) -> bytes:
    """Also of a partition key, which is written in the same way. Raises UserMistake."""
    match stream:
        case bytes():
            return stream
        case str():
            try:
                return key_of(stream)
            except ValueError as error:
                raise UserMistake(f"{stream!r} is no name of a stream: {error}") from error
    raise UserMistake(f"a stream is named by text or bytes, and not by {stream!r}")


def name_given(stream: object) -> str:
    """As it is written, for only a server may know whether it is one. Raises UserMistake."""
    match stream:
        case bytes():
            return name_of(stream)
        case str():
            return stream
    raise UserMistake(f"a stream is named by text or bytes, and not by {stream!r}")


def name_in(signed_name: object) -> str | None:
    """The name that a signed one holds; None: it holds none. Raises UserMistake."""
    if not isinstance(signed_name, str):
        raise UserMistake(f"a signed name is text, and not {signed_name!r}")
    return unverified_name(signed_name)
