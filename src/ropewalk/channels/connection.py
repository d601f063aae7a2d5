"""A client's connection, as handlers see it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from ropewalk.channels.handlers import Reject
from ropewalk.channels.values import decode_state, json_object, json_text
from ropewalk.model.application import CallContext

ANONYMOUS = "{}"
"""The ids of a client that `on_connect` accepted without `identify`."""

REMOTE_HEADER = "REMOTE_ADDR"


class Connection:
    """The connection of the calling client. Handlers get one; in a channel it is `self.connection`.

    `sid`       names the session. With it a client can resume the session: keep it as secret as a cookie.
    `url`       the URL of the client's request; `params` are the fields of its query (of a repeated one the last).
    `headers`   those that the server passes on (its setting `--headers`), in lower case; `cookies` are read from them.
    `remote`    the client's address.
    `ids`       the text that identifies the user everywhere in Ropewalk; `identity` are the same fields as a dict.
    `member_id` the same as an id for presence; "" for an anonymous client.
    `state`     a dict of JSON values that the server keeps for the connection, over commands and reconnects. Change it freely.

    The object lives for one call: keep nothing on it but in `state`.
    """

    def __init__(self, context: CallContext, *, connecting: bool = False) -> None:
        self.sid = context.sid
        self.url = context.url
        self.headers: Mapping[str, str] = context.headers
        self.ids = context.ids
        self.state: dict[str, Any] = decode_state(context.state)
        self._connecting = connecting

    @property
    def remote(self) -> str:
        return self.headers.get(REMOTE_HEADER, "")

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for pair in self.headers.get("cookie", "").split(";"):
            name, equals, value = pair.partition("=")
            if equals:
                found.setdefault(name.strip(), _unquote(value.strip()))  # browsers send the most specific one first
        return found

    @cached_property
    def params(self) -> Mapping[str, str]:
        # Not urlsplit: the client sends the host, and some hosts make it raise.
        query = self.url.partition("#")[0].partition("?")[2]
        return dict(parse_qsl(query, keep_blank_values=True))

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments of `identify`, or {} if `ids` is not a JSON object (a token may contain any text)."""
        return json_object(self.ids) or {}

    @property
    def member_id(self) -> str:
        """The value of its only identity field ("42" for `identify(user_id=42)`), or the whole of `ids`."""
        values = list(self.identity.values())
        if len(values) == 1 and isinstance(values[0], str | int) and values[0] != "":
            return str(values[0])
        return "" if self.ids == ANONYMOUS else self.ids

    def identify(self, **fields: Any) -> None:
        """Identify the client, in `on_connect`: `connection.identify(user_id=42)`. Further calls add fields.

        The fields become `ids`, as JSON in the order given. All sessions of a user have the same ids: keep values that differ
        between them in `state` instead.
        """
        if not self._connecting:
            raise RuntimeError("identify can only be called in on_connect: afterwards use connection.state")
        self.ids = json_text({**self.identity, **fields}, "the identity of a connection")

    def reject(self, reason: str = "") -> NoReturn:
        """Refuse the connection. Raises `Reject`, so that the rest of the handler does not run. The reason is logged."""
        raise Reject(reason)


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
