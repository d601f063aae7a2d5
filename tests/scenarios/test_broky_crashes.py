"""Broky clients after a server was killed: a journal keeps positions and uids valid, without one the server reports a gap."""

import time
from pathlib import Path

import pytest

from ropewalk.protocol.broky.frames import Gap, Ping, Pong, Pushed, Reason, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.ksuid import new_ksuid
from ropewalk.protocol.broky.runs import build_run, split_payloads
from tests.broky_client import BrokyClient, client
from tests.server import running_server

KEY = b"\xffcrash"
WORKERS = pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.tier("all"))])


async def messages(broky: BrokyClient) -> list[tuple[int, bytes]]:
    """Everything that comes before the answer to a ping."""
    broky.send(Ping(1))
    found: list[tuple[int, bytes]] = []
    while not isinstance(body := await broky.receive(), Pong):
        assert isinstance(body, Run), body
        found += enumerate(split_payloads(body), start=body.offset)
    return found


@WORKERS
async def test_crash_with_a_journal_keeps_the_epoch_and_the_position_of_a_uid(tmp_path: Path, workers: str) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--workers", workers)
    uids = b"".join(new_ksuid(time.time()) for _ in range(3))
    with running_server(*flags) as server:
        async with client(server) as broky:
            broky.send(build_run(KEY, [b"1", b"2", b"3"], 1, uid=uids))
            first = await broky.expect(Pushed)
            broky.send(build_run(KEY, [b"4"], 2))
            assert (await broky.expect(Pushed)).offsets == (4,)
        server.kill()
    with running_server(*flags) as server:
        async with client(server) as broky:
            broky.send(build_run(KEY, [b"1", b"2", b"3"], 1, uid=uids), build_run(KEY, [b"5"], 2))
            answers = await broky.expect(Pushed)
            if len(answers.refs) == 1:
                rest = await broky.expect(Pushed)
                answers = Pushed(answers.refs + rest.refs, answers.offsets + rest.offsets, answers.epochs + rest.epochs)
            assert (answers.refs, answers.offsets, answers.epochs) == ((1, 2), (1, 5), first.epochs * 2)
            broky.send(Subscribe(3, KEY, epoch=first.epochs[1:], offset=2))
            assert await broky.expect(Subscribed) == Subscribed(3, first.epochs[1:], 5)
            assert await messages(broky) == [(3, b"3"), (4, b"4"), (5, b"5")]


@WORKERS
async def test_crash_without_a_journal_is_reported_as_a_changed_epoch(workers: str) -> None:
    flags = ("--public", "--workers", workers)
    with running_server(*flags) as server:
        async with client(server) as broky:
            broky.send(build_run(KEY, [b"1", b"2"], 1))
            former = (await broky.expect(Pushed)).epochs[1:]
        server.kill()
    with running_server(*flags) as server:
        async with client(server) as broky:
            broky.send(build_run(KEY, [b"a"], 1))
            epoch = (await broky.expect(Pushed)).epochs[1:]
            assert epoch != former
            assert (await broky.subscribe(KEY, former, 2)).offset == 1
            gap = await broky.expect(Gap)
            assert (gap.key, gap.reason, gap.epoch, gap.last) == (KEY, Reason.EPOCH_CHANGED, epoch, 0)
            assert await messages(broky) == [(1, b"a")]
