"""What a handler requests, collected until it returns. A handler that raises has no effect."""

from dataclasses import dataclass, field
from typing import Self

from ropewalk.channels.values import json_text
from ropewalk.model.application import MEMBER_KEY, PRESENCE_KEY, SENDER_KEY, WHISPER_KEY, PresenceUpdate, State
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member

COMPANION_KEYS = {WHISPER_KEY: SENDER_KEY, PRESENCE_KEY: MEMBER_KEY}
"""Keys that are removed together."""


@dataclass(slots=True)
class Effects:
    """The requests of one handler.

    Args:
        kept: the subscription's state before the call.
        fixed_in: the handler's name, if streams and presence cannot change in it; else "".
        over: whether the handler has returned.
        own: changes of the server's keys in the subscription's state.
    """

    kept: State
    fixed_in: str = ""
    over: bool = False
    transmissions: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    stop_all: bool = False
    own: State = field(default_factory=dict)
    presence_update: PresenceUpdate | None = None
    publications: list[Publication] = field(default_factory=list)
    disconnect: bool = False

    def during(self, method: str) -> Self:
        """Returns itself. Raises RuntimeError after the handler has returned, when its requests have no effect."""
        if self.over:
            raise RuntimeError(
                f"{method} was called after its handler returned: from tasks and threads use app.publish or app.publish_sync"
            )
        return self

    def during_streaming(self, method: str) -> Self:
        """As `during`, also for handlers in which streams and presence cannot change."""
        if self.fixed_in:
            raise RuntimeError(f"{method} cannot be used in {self.fixed_in}: call it in subscribed or in an action")
        return self.during(method)

    def stream_from(self, stream: str) -> None:
        if stream not in self.streams:
            self.streams.append(stream)

    def allow_whispers(self, stream: str, sender: str) -> None:
        """`sender`: the id that others see; "" for an anonymous client."""
        self.own[WHISPER_KEY] = stream
        self.own[SENDER_KEY] = json_text(sender or None, "the sender of whispers")

    def allow_presence(self, stream: str, member: str) -> None:
        """`member`: the id under which the client is present from now on; "" lets the client choose one and join itself."""
        if self._current(PRESENCE_KEY) == stream and self._current(MEMBER_KEY) == member:
            return
        self.own[PRESENCE_KEY] = stream
        if member or self._current(MEMBER_KEY):
            self.own[MEMBER_KEY] = member
        self.presence_update = PresenceUpdate(True, Member(member)) if member else None

    def join_presence(self, member: Member) -> None:
        self.own[MEMBER_KEY] = member.id
        self.presence_update = PresenceUpdate(True, member)

    def stop_stream(self, stream: str) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
        if stream not in self.stopped:
            self.stopped.append(stream)
        self._remove(*(key for key in (WHISPER_KEY, PRESENCE_KEY) if self._current(key) == stream))

    def stop_all_streams(self) -> None:
        self.streams.clear()
        self.stopped.clear()
        self.stop_all = True
        self._remove(WHISPER_KEY, PRESENCE_KEY)

    def presence_stream(self) -> str:
        """ "" if the subscription has no presence set."""
        return self._current(PRESENCE_KEY)

    def _remove(self, *keys: str) -> None:
        for key in keys:
            for each in (key, COMPANION_KEYS[key]):
                if self._current(each):
                    self.own[each] = ""
            if key == PRESENCE_KEY:
                self.presence_update = None

    def _current(self, key: str) -> str:
        return self.own.get(key, self.kept.get(key, ""))
