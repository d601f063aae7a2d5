"""What a handler asked for. It is kept here until the handler is done, so that one that fails has done nothing."""

from dataclasses import dataclass, field
from typing import Self

from ropewalk.channels.texts import json_text
from ropewalk.model.application import MEMBER_KEY, PRESENCE_KEY, SENDER_KEY, WHISPER_KEY, PresenceUpdate, State
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member

GOES_WITH = {WHISPER_KEY: SENDER_KEY, PRESENCE_KEY: MEMBER_KEY}


@dataclass(slots=True)
class Effects:
    """`kept` is the subscription's state as it came, `own` the server's own keys of it that change.

    `settled` names a handler in which streams and presence cannot change any more; `over`: the handler is done.
    """

    kept: State
    settled: str = ""
    over: bool = False
    transmissions: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    stop_all: bool = False
    own: State = field(default_factory=dict)
    presence_update: PresenceUpdate | None = None
    publications: list[Publication] = field(default_factory=list)
    disconnect: bool = False

    def asking(self, what: str) -> Self:
        """Raises RuntimeError when nobody would do what is asked for."""
        if self.over:
            raise RuntimeError(
                f"{what} was called after its handler was done, when nobody listens any more: "
                "from tasks and threads that go on use app.publish or app.publish_sync"
            )
        return self

    def streaming(self, what: str) -> Self:
        if self.settled:
            raise RuntimeError(f"{what} cannot be used in {self.settled}: say it in subscribed or in an action")
        return self.asking(what)

    def stream_from(self, stream: str) -> None:
        if stream not in self.streams:
            self.streams.append(stream)

    def allow_whispers(self, stream: str, sender: str) -> None:
        """`sender`: who the client is to the others; "" for nobody that they know."""
        self.own[WHISPER_KEY] = stream
        self.own[SENDER_KEY] = json_text(sender or None, "who whispers")

    def allow_presence(self, stream: str, member: str) -> None:
        """`member`: the id under which the client is present from now on; "" lets the client choose one, and join by itself."""
        if self._current(PRESENCE_KEY) == stream and self._current(MEMBER_KEY) == member:
            return
        self.own[PRESENCE_KEY] = stream
        if member or self._current(MEMBER_KEY):
            self.own[MEMBER_KEY] = member
        self.presence_update = PresenceUpdate(True, Member(member)) if member else None

    def seat(self, member: Member) -> None:
        self.own[MEMBER_KEY] = member.id
        self.presence_update = PresenceUpdate(True, member)

    def stop_stream(self, stream: str) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
        if stream not in self.stopped:
            self.stopped.append(stream)
        self._forget(*(key for key in (WHISPER_KEY, PRESENCE_KEY) if self._current(key) == stream))

    def stop_all_streams(self) -> None:
        self.streams.clear()
        self.stopped.clear()
        self.stop_all = True
        self._forget(WHISPER_KEY, PRESENCE_KEY)

    def presence_stream(self) -> str:
        """ "" where the client cannot be present anywhere."""
        return self._current(PRESENCE_KEY)

    def _forget(self, *keys: str) -> None:
        for key in keys:
            for each in (key, GOES_WITH[key]):
                if self._current(each):
                    self.own[each] = ""
            if key == PRESENCE_KEY:
                self.presence_update = None

    def _current(self, key: str) -> str:
        return self.own.get(key, self.kept.get(key, ""))
