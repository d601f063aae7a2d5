"""How the supervisor speaks with its children, and when it starts one again."""

import asyncio
import signal
import socket
from collections.abc import Iterator

import pytest

from ropewalk.app.child_process import BETWEEN_STARTS, delay_before_start, ended_by_operator, how_it_ended
from ropewalk.app.control_channel import ControlChannel, Failed, ProcessOrder, Ready, Word


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (2, "exit code 2"), (-signal.SIGKILL, "SIGKILL"), (-signal.SIGSEGV, "SIGSEGV"), (-99, "signal 99")],
)
def test_how_a_process_ended_is_told_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


@pytest.mark.parametrize(
    ("code", "ordered"),
    [
        (0, True),
        (-signal.SIGTERM, True),
        (-signal.SIGINT, True),
        (1, False),
        (-signal.SIGKILL, False),
        (-signal.SIGSEGV, False),
    ],
)
def test_an_ordered_end_is_told_from_a_crash(code: int, ordered: bool) -> None:
    assert ended_by_operator(code) is ordered


def test_one_that_ends_is_started_at_once_and_later_and_later_if_it_goes_on() -> None:
    delays = [delay_before_start(failures, lambda: 1.0) for failures in range(1, 12)]
    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert delays == sorted(delays)
    assert delays[-1] == BETWEEN_STARTS.cap


class Heard:
    """One end of a channel, and all that came there."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = ControlChannel(sock)
        self.words: list[Word] = []
        self.over = asyncio.Event()
        self._came = asyncio.Event()
        self.channel.watch(self._hear, self.over.set)

    def _hear(self, word: Word) -> None:
        self.words.append(word)
        self._came.set()

    async def until(self, count: int) -> list[Word]:
        async with asyncio.timeout(15):
            while len(self.words) < count:
                await self._came.wait()
                self._came.clear()
        return self.words


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_words_arrive_whole_and_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Heard(ends[0]), Heard(ends[1])
    said: list[Word] = [Ready(), Failed("no\nsuch\nthing " * 1000)]
    for word in said:
        theirs.channel.say(word)
    for order in ProcessOrder:
        ours.channel.say(order)
    assert await ours.until(2) == said
    assert await theirs.until(len(ProcessOrder)) == list(ProcessOrder)


async def test_the_end_of_the_other_side_is_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = Heard(ends[1])
    ends[0].close()
    async with asyncio.timeout(15):
        await theirs.over.wait()
    theirs.channel.say(Ready())  # to nobody, which is no failure


async def test_the_last_words_are_heard_before_a_channel_is_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    ours = Heard(ends[0])
    ControlChannel(ends[1]).say(Failed("why"))
    ends[1].close()
    ours.channel.close()
    assert ours.words == [Failed("why")]
