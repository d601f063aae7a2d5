"""A client's connection, as handlers see it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from ropewalk.channels.errors import Reject
from ropewalk.channels.state import shown
from ropewalk.channels.texts import json_object, json_text
from ropewalk.model.application import CallContext

NOBODY = "{}"
"""The ids of a client that was let in without a word about who it is."""

REMOTE_HEADER = "REMOTE_ADDR"


class Connection:
    """Who is calling. Handlers get one; in a channel it is `self.connection`.

    `sid`       names the session. Whoever knows it may resume the session: keep it as secret as a cookie.
    `url`       as the client asked for it, with its query in `params` (of a repeated one the last counts).
    `headers`   those that the server passes on (its setting `--headers`), in lower case; `cookies` are read from them.
    `remote`    the client's address.
    `ids`       the text that names the user of the connection everywhere in Ropewalk; `identity` are the same fields as a dict.
    `member_id` the same as an id among those who are present; "" where nobody has said who it is.
    `state`     a dict of JSON values that the server keeps for the connection, over commands and reconnects. Change it freely.

    The object lives for one call: keep nothing on it but in `state`.
    """

    def __init__(self, context: CallContext, *, arriving: bool = False) -> None:
        self.sid = context.sid
        self.url = context.url
        self.headers: Mapping[str, str] = context.headers
        self.ids = context.ids
        self.state: dict[str, Any] = shown(context.state)
        self._arriving = arriving

    @property
    def remote(self) -> str:
        return self.headers.get(REMOTE_HEADER, "")

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for pair in self.headers.get("cookie", "").split(";"):
            name, equals, value = pair.partition("=")
            if equals:
                found.setdefault(name.strip(), _unquoted(value.strip()))  # browsers send the most specific one first
        return found

    @cached_property
    def params(self) -> Mapping[str, str]:
        # Not urlsplit: the host is what the client said, and some hosts make it raise.
        query = self.url.partition("#")[0].partition("?")[2]
        return dict(parse_qsl(query, keep_blank_values=True))

    @property
    def identity(self) -> dict[str, Any]:
        """What `identify` was given, or {} where `ids` are no JSON object (a token may say anything)."""
        return json_object(self.ids) or {}

    @property
    def member_id(self) -> str:
        """The value of the one field that it was identified by ("42" for `identify(user_id=42)`), or the whole of `ids`."""
        values = list(self.identity.values())
        if len(values) == 1 and isinstance(values[0], str | int) and values[0] != "":
            return str(values[0])
        return "" if self.ids == NOBODY else self.ids

    def identify(self, **fields: Any) -> None:
        """Say who it is, in `on_connect`: `connection.identify(user_id=42)`. Called again it adds to what was said.

        The fields become `ids`, as JSON in the order given. Sessions of one user have the same ids, so leave out what differs
        between them, and keep that in `state`.
        """
        if not self._arriving:
            raise RuntimeError("a connection is identified in on_connect only: afterwards use connection.state")
        self.ids = json_text({**self.identity, **fields}, "the identity of a connection")

    def reject(self, reason: str = "") -> NoReturn:
        """Turn the client away. Raises `Reject`, so that nothing after it runs; the reason is for the log."""
        raise Reject(reason)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
