"""Reads kept history for clients that have no subscription to the stream, one bounded part at a time.

A part is one read of the store. It contains a reason if it does not follow the requested position.
"""

import logging

from ropewalk.core.stats import Stats
from ropewalk.engine.session import Session
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.commands import ReadHistory
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import GapReason, HistoryPage, HistoryPart
from ropewalk.model.messages import Position
from ropewalk.model.sessions import NotGranted
from ropewalk.ports import StreamStore

logger = logging.getLogger("ropewalk.session")

WRITE_BYTES = 65536


class HistoryPages:
    def __init__(self, store: StreamStore, stats: Stats, waiting: WaitingHistory) -> None:
        self._store = store
        self._stats = stats
        self._waiting = waiting

    async def answer(self, session: "Session", stream: str, query: ReadHistory) -> bool:
        """True if there was an answer. It counts against the command rate by its size."""
        try:
            part = await self._waiting.read(lambda: self._read(stream, query.after, query.limit))
        except Unavailable as error:
            logger.debug("history unavailable", extra={"session": session.tag, "reason": str(error)})
            self.refuse(session, NotGranted("unavailable", str(error)))
            return False
        self._stats.replays += 1
        self._stats.replayed_messages += len(part.messages)
        await self._send(session, part)
        return True

    def refuse(self, session: "Session", refused: NotGranted) -> None:
        session.link.answer(b"".join(session.link.codec.history_part(refused)))

    async def _send(self, session: "Session", part: HistoryPart) -> None:
        """Send in writes of bounded size, each after the client took the one before."""
        link = session.link
        # Messages that exclude the client live are excluded here too.
        visible = tuple(message for message in part.messages if message.exclude_socket not in link.names)
        waiting: list[bytes] = []
        size = answered = 0
        for frame in link.codec.history_part(HistoryPart(part.epoch, part.oldest, part.last, part.tip, visible, part.reason)):
            waiting.append(frame)
            size += len(frame)
            if size >= WRITE_BYTES:
                link.send(b"".join(waiting))
                await self._waiting.drained(link, [part.messages], size)
                waiting, size, answered = [], 0, answered + size
        link.send(b"".join(waiting))
        session.charge(answered + size)

    async def _read(self, stream: str, after: Position, limit: int) -> HistoryPart:
        """Raises `Unavailable`."""
        page = await self._store.page(stream, after.offset, limit)
        if page is None:
            return HistoryPart("", 1, 0, 0, (), GapReason.EPOCH_CHANGED if after.epoch else None)
        if after.epoch in ("", page.epoch):
            return _part(page, _missing(page, after))
        from_the_first = await self._store.page(stream, 0, limit)
        return _part(from_the_first or page, GapReason.EPOCH_CHANGED)


def _part(page: HistoryPage, reason: GapReason | None) -> HistoryPart:
    messages = page.messages
    last = messages[-1].offset if messages else page.tip
    return HistoryPart(page.epoch, page.oldest, last, page.tip, messages, reason)


def _missing(page: HistoryPage, after: Position) -> GapReason | None:
    if after.offset > page.tip:
        return GapReason.AHEAD
    first = page.messages[0].offset if page.messages else page.tip + 1
    has_position = after.epoch or after.offset  # otherwise the request is for all kept messages
    return GapReason.TRIMMED if has_position and first > after.offset + 1 else None
