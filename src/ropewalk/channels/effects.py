"""What a handler asked for. It is kept here until the handler is done, so that one that fails has done nothing."""

from dataclasses import dataclass, field
from typing import Self

from ropewalk.model.application import PRESENCE_KEY, WHISPER_KEY, Seating, State
from ropewalk.model.messages import Publication


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
    seating: Seating | None = None
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

    def stream_from(self, stream: str, whisper: bool, presence: bool) -> None:
        if stream not in self.streams:
            self.streams.append(stream)
        if whisper:
            self.own[WHISPER_KEY] = stream
        if presence:
            self.own[PRESENCE_KEY] = stream

    def stop_stream(self, stream: str) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
        if stream not in self.stopped:
            self.stopped.append(stream)
        for key in (WHISPER_KEY, PRESENCE_KEY):
            if self._current(key) == stream:
                self.own[key] = ""

    def stop_all_streams(self) -> None:
        self.streams.clear()
        self.stopped.clear()
        self.stop_all = True
        for key in (WHISPER_KEY, PRESENCE_KEY):
            if self._current(key):
                self.own[key] = ""

    def presence_stream(self) -> str:
        """ "" where the client cannot be present anywhere."""
        return self._current(PRESENCE_KEY)

    def _current(self, key: str) -> str:
        return self.own.get(key, self.kept.get(key, ""))
