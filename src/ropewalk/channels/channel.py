"""The base class of an application's channels, and the decorator for the methods that clients may call."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, overload
from urllib.parse import parse_qsl

from msgspec import Struct

from ropewalk.channels.handlers import Reject
from ropewalk.channels.replies import Effects
from ropewalk.channels.values import decode_state, json_bytes, json_object, json_text, publication, stream_name
from ropewalk.model.application import CallContext, PresenceUpdate
from ropewalk.model.nesting import MAX_DEPTH
from ropewalk.model.presence import Member

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


ActionMethod = TypeVar("ActionMethod", bound=Callable[..., Any])

_MARK = "_ropewalk_action"


class ActionMark(Struct, frozen=True):
    """The decorator puts it on a method. `name` is "" if the action has the method's own name."""

    name: str
    takes_data: bool


class Callee(Struct, frozen=True):
    """The method behind an action."""

    method: str
    takes_data: bool


@overload
def action(method: ActionMethod, /) -> ActionMethod: ...
@overload
def action(name: str, /) -> Callable[[ActionMethod], ActionMethod]: ...
def action(given: ActionMethod | str, /) -> ActionMethod | Callable[[ActionMethod], ActionMethod]:
    """Let clients call a method of a channel: `channel.perform("speak", {text: "hi"})` calls `speak`.

        @action
        async def speak(self, data: dict[str, Any]) -> None: ...

        @action("mark-as-read")
        def mark_as_read(self) -> None: ...

    `data` is the client's data, with the action's name under "action"; a method without that parameter does not get it.
    The caller gets the method's return value, or an error if it raises.
    The action `receive` gets data that names no action.
    """
    if not isinstance(given, str):
        return _mark(given, "")
    if not given:
        raise ValueError("an action's name cannot be empty")
    name = given
    return lambda method: _mark(method, name)


class Channel:
    """What clients subscribe to. Subclass it, and register the class with an app:

        @app.channel
        class ChatChannel(Channel):
            async def subscribed(self) -> None:
                self.stream_from(f"chat/{self.params['room']}")

            @action
            async def speak(self, data: dict[str, Any]) -> None:
                self.broadcast(f"chat/{self.params['room']}", {"text": data["text"]})

            @action
            async def count(self) -> int:
                return await messages_in(self.params["room"])

    `params`      the client's subscription parameters, without the channel's name.
    `identifier`  the same as the text that names the subscription on the wire.
    `connection`  the connection of the subscription.
    `state`       a dict of JSON values that the server keeps for this subscription, over commands and reconnects.

    An object lives for one call: keep values in `self.state`. Methods may be `async def`, which run on the event loop and must
    not block it, or plain `def`, which run in a thread. Their requests (streams, transmissions, broadcasts, state) take effect
    when they return. If they raise, none of them does.
    """

    params: dict[str, Any]
    identifier: str
    connection: Connection
    state: dict[str, Any]
    _actions: ClassVar[dict[str, Callee]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__init__ is not Channel.__init__:
            raise TypeError(f"{cls.__name__} cannot have an __init__: a channel lives for one call, keep values in self.state")
        cls._actions = _collect_actions(cls, {*vars(Channel), *Channel.__annotations__})

    def __init__(self, connection: Connection, identifier: str, params: dict[str, Any], effects: Effects) -> None:
        """Made by the app, for one call."""
        self.connection = connection
        self.identifier = identifier
        self.params = params
        self.state = decode_state(effects.kept)
        self._effects = effects

    # --- override these -----------------------------------------------------------------------------------------------

    def subscribed(self) -> Awaitable[None] | None:
        """A client wants to subscribe. Call `self.stream_from(...)` or `self.reject()`. An error rejects the client too."""
        return None

    def unsubscribed(self) -> Awaitable[None] | None:
        """The client has unsubscribed, or its session has ended for good. Not called while it may still reconnect."""
        return None

    def restored(self) -> Awaitable[None] | None:
        """The client has reconnected and resumed its session, with its streams and state. History fills what it missed."""
        return None

    # --- call these ---------------------------------------------------------------------------------------------------

    def stream_from(self, stream: str, *, whisper: bool = False, presence: bool | Literal["client"] = False) -> None:
        """Deliver the messages of a stream to this subscription.

        `whisper` and `presence` each apply to one stream of a subscription: the last one requested.

        Args:
            whisper: this client may send to the other subscribers without the application. They get `{"$whisper": …,
                "from": id}`, so that they cannot mistake it for a message of the application.
            presence: True makes this client a member of the stream's presence set, under its own identity
                (`connection.member_id`) and no other, and lets it read the set. With "client" the client joins itself, under
                an id that it chooses.
        """
        name, member = stream_name(stream), self.connection.member_id
        effects = self._effects.during_streaming("stream_from")
        if presence is True and not member:
            raise RuntimeError(
                "presence=True needs the client's identity: call connection.identify(...) in on_connect, or use "
                'presence="client" to let clients choose'
            )
        effects.stream_from(name)
        if whisper:
            effects.allow_whispers(name, member)
        if presence:
            effects.allow_presence(name, member if presence is True else "")

    def stop_stream(self, stream: str) -> None:
        """Stop delivering this stream. Ends whispers and presence if they belong to it."""
        self._effects.during_streaming("stop_stream").stop_stream(stream_name(stream))

    def stop_all_streams(self) -> None:
        """Stop delivering all streams. The subscription stays, and may stream again later."""
        self._effects.during_streaming("stop_all_streams").stop_all_streams()

    def transmit(self, data: Any) -> None:
        """Send JSON to this client only. In `subscribed` it arrives before the confirmation."""
        text = json_text({"identifier": self.identifier, "message": data}, "the data of transmit", MAX_DEPTH + 1)
        self._effects.during("transmit").transmissions.append(text)

    def broadcast(
        self, stream: str, data: Any, *, exclude_self: bool = False, transient: bool = False, uid: str = "", type: str = ""
    ) -> None:
        """Publish JSON to all subscribers of a stream, once this handler has returned.

        To publish at once, or from a background task, use `await app.publish(...)`.

        Args:
            exclude_self: do not deliver it to this client.
            transient: do not keep it in the history.
            uid: an idempotency key: messages with the same one are registered once.
            type: the `type` of the message on the wire.
        """
        exclude_socket = self.connection.sid if exclude_self else ""
        self._effects.during("broadcast").publications.append(
            publication(stream, data, exclude_socket=exclude_socket, transient=transient, uid=uid, type=type)
        )

    def join_presence(self, id: str = "", info: Any = None) -> None:
        """Add the client to the presence set, with JSON that the others see. Joining again replaces the info.

        Needs a stream with `presence=True`, here or earlier.

        Args:
            id: an id other than the client's own (`connection.member_id`). From then on the client cannot use another one.
        """
        effects, member = self._effects.during_streaming("join_presence"), str(id) if id else self.connection.member_id
        if not effects.presence_stream():
            raise RuntimeError("join_presence needs a presence set: call stream_from(..., presence=True) before")
        if not member:
            raise ValueError("a presence member needs an id")
        effects.join_presence(Member(member, b"" if info is None else json_bytes(info, "the presence info")))

    def leave_presence(self) -> None:
        """Remove the client from the presence set. The server does so when the client unsubscribes or its session ends."""
        self._effects.during_streaming("leave_presence").presence_update = PresenceUpdate(False, Member(""))

    def disconnect(self) -> None:
        """Close the client's connection once this handler has returned."""
        self._effects.during("disconnect").disconnect = True

    def reject(self, reason: str = "") -> NoReturn:
        """Refuse the subscription or the action. Raises `Reject`, so that the rest of the handler does not run.

        Earlier transmissions are still sent. The reason is logged. To send it to the caller of an action, raise `ActionError`.
        """
        raise Reject(reason)


def _collect_actions(channel: type, reserved: Collection[str]) -> dict[str, Callee]:
    """Returns the actions of a class and those it inherits, by name. `reserved`: methods that cannot be actions."""
    found: dict[str, Callee] = {}
    for method in dir(channel):
        mark = _find_mark(channel, method)
        if mark is None:
            continue
        if method in reserved:
            raise TypeError(f"{channel.__name__}.{method} cannot be an action: every channel has a method of that name")
        name = mark.name or method
        if name in found:
            taken = found[name].method
            raise ValueError(f"two methods of {channel.__name__} are the action {name!r}: {taken} and {method}")
        found[name] = Callee(method, mark.takes_data)
    return found


def _find_mark(channel: type, method: str) -> ActionMark | None:
    declared = [vars(base)[method] for base in channel.__mro__ if method in vars(base)]
    marks: list[ActionMark | None] = [getattr(each, _MARK, None) for each in declared]
    if marks and marks[0] is None and any(marks):
        raise TypeError(
            f"{channel.__name__}.{method} overrides an action: decorate it with @action too, or give it another name"
        )
    return marks[0] if marks else None


def _mark(method: ActionMethod, name: str) -> ActionMethod:
    if isinstance(method, staticmethod | classmethod | property) or not callable(method):
        raise TypeError(f"@action needs a plain method, not {method!r}")
    setattr(method, _MARK, ActionMark(name, _takes_data(method)))
    return method


def _takes_data(method: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(method).parameters.values())
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    starred = [each for each in parameters if each.kind is each.VAR_POSITIONAL]
    named = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    if not places or any(each.default is each.empty for each in [*places[2:], *named]):
        raise TypeError(f"an action takes `self, data` or only `self`: {method.__qualname__}{inspect.signature(method)}")
    return len(places) > 1 or bool(starred)
