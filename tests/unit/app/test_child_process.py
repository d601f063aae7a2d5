"""The control channel between the supervisor and its child processes, and the delay before a restart."""

import asyncio
import signal
import socket
from collections.abc import Iterator

import pytest

from ropewalk.app.child_process import BETWEEN_STARTS, delay_before_start, describe_exit, ended_by_operator
from ropewalk.app.control_channel import ControlChannel, ControlMessage, Failed, ProcessCommand, Ready


def test_exit_status_is_described(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, str]] = [
        (0, "exit code 0"),
        (2, "exit code 2"),
        (-signal.SIGKILL, "SIGKILL"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-99, "signal 99"),
    ]
    for code, text in cases:
        with subtests.test(code=code):
            assert describe_exit(code) == text


def test_exit_by_an_operator_is_distinguished_from_a_crash(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, bool]] = [
        (0, True),
        (-signal.SIGTERM, True),
        (-signal.SIGINT, True),
        (1, False),
        (-signal.SIGKILL, False),
        (-signal.SIGSEGV, False),
    ]
    for code, by_operator in cases:
        with subtests.test(code=code):
            assert ended_by_operator(code) is by_operator


def test_first_restart_is_immediate_and_further_ones_back_off() -> None:
    delays = [delay_before_start(failures, lambda: 1.0) for failures in range(1, 12)]
    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert delays == sorted(delays)
    assert delays[-1] == BETWEEN_STARTS.cap


class Receiver:
    """One end of a channel and the messages received on it."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = ControlChannel(sock)
        self.messages: list[ControlMessage] = []
        self.over = asyncio.Event()
        self._arrived = asyncio.Event()
        self.channel.watch(self._receive, self.over.set)

    def _receive(self, message: ControlMessage) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def received(self, count: int) -> list[ControlMessage]:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                await self._arrived.wait()
                self._arrived.clear()
        return self.messages


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_messages_arrive_complete_and_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Receiver(ends[0]), Receiver(ends[1])
    sent: list[ControlMessage] = [Ready(), Failed("no\nsuch\nthing " * 1000)]
    for message in sent:
        theirs.channel.send(message)
    for order in ProcessCommand:
        ours.channel.send(order)
    assert await ours.received(2) == sent
    assert await theirs.received(len(ProcessCommand)) == list(ProcessCommand)


async def test_close_by_the_peer_is_reported(ends: tuple[socket.socket, socket.socket]) -> None:
    theirs = Receiver(ends[1])
    ends[0].close()
    async with asyncio.timeout(60):
        await theirs.over.wait()
    theirs.channel.send(Ready())  # without a peer: not an error


async def test_pending_messages_are_read_when_a_channel_is_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    ours = Receiver(ends[0])
    ControlChannel(ends[1]).send(Failed("why"))
    ends[1].close()
    ours.channel.close()
    assert ours.messages == [Failed("why")]
