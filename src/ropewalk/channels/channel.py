"""The base class of an application's channels."""

from collections.abc import Awaitable
from typing import Any, ClassVar, Literal, NoReturn

from ropewalk.channels.actions import Callee, actions_of
from ropewalk.channels.connection import Connection
from ropewalk.channels.effects import Effects
from ropewalk.channels.errors import Reject
from ropewalk.channels.publications import publication, stream_name
from ropewalk.channels.state import shown
from ropewalk.channels.texts import json_bytes, json_text
from ropewalk.model.application import PresenceUpdate
from ropewalk.model.nesting import MAX_DEPTH
from ropewalk.model.presence import Member


class Channel:
    """What clients subscribe to. Subclass it, and hand the class to an app:

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

    `params`      what the client subscribed with, without the channel's name.
    `identifier`  the same as the text that names the subscription on the wire.
    `connection`  whose subscription it is.
    `state`       a dict of JSON values that the server keeps for this subscription, over commands and reconnects.

    An object lives for one call: what must last goes into `self.state`. Methods may be `async def`, which run on the event loop
    and must not block it, or plain `def`, which run in a thread. What they ask for (streams, transmissions, broadcasts, state)
    is done when they have returned; if they raise, nothing of it is.
    """

    params: dict[str, Any]
    identifier: str
    connection: Connection
    state: dict[str, Any]
    _actions: ClassVar[dict[str, Callee]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__init__ is not Channel.__init__:
            raise TypeError(
                f"{cls.__name__} cannot have an __init__: a channel lives for one call, what lasts goes into self.state"
            )
        cls._actions = actions_of(cls, {*vars(Channel), *Channel.__annotations__})

    def __init__(self, connection: Connection, identifier: str, params: dict[str, Any], effects: Effects) -> None:
        """Made by the app, for one call."""
        self.connection = connection
        self.identifier = identifier
        self.params = params
        self.state = shown(effects.kept)
        self._effects = effects

    # --- override these -----------------------------------------------------------------------------------------------

    def subscribed(self) -> Awaitable[None] | None:
        """A client wants to subscribe. Say here what it streams from, or `self.reject()`. An error rejects it too."""
        return None

    def unsubscribed(self) -> Awaitable[None] | None:
        """The client has left: it unsubscribed, or its session is gone for good. Not called while it may still come back."""
        return None

    def restored(self) -> Awaitable[None] | None:
        """The session was away and has come back, with its streams and state. What it missed it gets from the history."""
        return None

    # --- call these ---------------------------------------------------------------------------------------------------

    def stream_from(self, stream: str, *, whisper: bool = False, presence: bool | Literal["client"] = False) -> None:
        """Deliver what is published to the stream to this subscription.

        `whisper`: this client may send to the others there without the application. They get `{"$whisper": …, "from": id}`, so
        that nobody takes it for a message of yours. `presence`: this client is among those who are there, under its own
        identity (`connection.member_id`) and no other, and may ask who is; with "client" it joins by itself, under an id that
        it chooses. Each can be one stream of a subscription; the last one asked for counts.
        """
        name, member = stream_name(stream), self.connection.member_id
        effects = self._effects.streaming("stream_from")
        if presence is True and not member:
            raise RuntimeError(
                "presence=True is under the client's own identity, and this client has none: say connection.identify(...) in "
                'on_connect, or presence="client" to let clients choose'
            )
        effects.stream_from(name)
        if whisper:
            effects.allow_whispers(name, member)
        if presence:
            effects.allow_presence(name, member if presence is True else "")

    def stop_stream(self, stream: str) -> None:
        """No longer deliver this stream. Whispers and presence end with theirs."""
        self._effects.streaming("stop_stream").stop_stream(stream_name(stream))

    def stop_all_streams(self) -> None:
        """No longer deliver anything. The subscription stays, and may stream again later."""
        self._effects.streaming("stop_all_streams").stop_all_streams()

    def transmit(self, data: Any) -> None:
        """Send JSON to this client alone. In `subscribed` it arrives before the confirmation."""
        text = json_text({"identifier": self.identifier, "message": data}, "what is transmitted", MAX_DEPTH + 1)
        self._effects.asking("transmit").transmissions.append(text)

    def broadcast(
        self, stream: str, data: Any, *, exclude_self: bool = False, transient: bool = False, uid: str = "", type: str = ""
    ) -> None:
        """Publish JSON to everybody who streams from it, once this handler is done. Nothing is sent if the handler raises.

        `exclude_self`: not to this client. `transient`: without a place in the history. `uid`: a name under which it is
        registered once, however often it is sent. `type`: becomes the `type` of the message on the wire.
        To publish at once, or from a background task, use `await app.publish(...)`.
        """
        exclude_socket = self.connection.sid if exclude_self else ""
        self._effects.asking("broadcast").publications.append(
            publication(stream, data, exclude_socket=exclude_socket, transient=transient, uid=uid, type=type)
        )

    def join_presence(self, id: str = "", info: Any = None) -> None:
        """Put the client among those who are present, with JSON for the others to see. `id`: another one than its own identity
        (`connection.member_id`). From then on the client cannot be present under any other.

        Needs a stream with `presence=True`, here or earlier. Joining again replaces the info.
        """
        effects, member = self._effects.streaming("join_presence"), str(id) if id else self.connection.member_id
        if not effects.presence_stream():
            raise RuntimeError("join_presence needs a presence set: say stream_from(..., presence=True) before")
        if not member:
            raise ValueError("who is present needs an id")
        effects.seat(Member(member, b"" if info is None else json_bytes(info, "the info of who is present")))

    def leave_presence(self) -> None:
        """Take the client out again. It goes by itself when it unsubscribes or is gone."""
        self._effects.streaming("leave_presence").presence_update = PresenceUpdate(False, Member(""))

    def disconnect(self) -> None:
        """Close the client's connection once this handler is done."""
        self._effects.asking("disconnect").disconnect = True

    def reject(self, reason: str = "") -> NoReturn:
        """Say no to the subscription, or to the action. Raises `Reject`, so that nothing after it runs.

        What was transmitted before is still sent; the reason is for the log. To tell the caller of an action why, raise
        `ActionError` instead.
        """
        raise Reject(reason)
