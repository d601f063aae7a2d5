"""Detection of silent connections. The timers never fire here: the tests call `check`."""

from typing import cast

import pytest

from ropewalk.client.errors import Unreachable
from ropewalk.client.link import MAX_SILENT_CHECKS, ClientLink, Keepalive


class Watch:
    """A keepalive and what it does to its connection. `received` and `reading` are those of a link."""

    def __init__(self, interval: float | None = None, pings: bool = False) -> None:
        self.received = True
        self.reading = True
        self.cuts = 0
        self.pings = 0
        self.errors: list[Unreachable] = []
        self.keepalive = Keepalive(cast(ClientLink, self), interval, self.ping if pings else None, self.errors.append)

    def cut(self) -> None:
        self.cuts += 1

    def ping(self) -> None:
        self.pings += 1

    def check(self, times: int = 1) -> None:
        for _ in range(times):
            self.keepalive.check()
        self.keepalive.stop()


async def test_silent_connection_is_cut_after_two_intervals() -> None:
    watch = Watch(3)
    watch.check(MAX_SILENT_CHECKS)
    assert watch.cuts == 0, "the first check saw the welcome"
    watch.check()
    assert watch.cuts == 1
    assert str(watch.errors[0]) == "the server was silent for 6 seconds"


async def test_received_data_restarts_the_count() -> None:
    watch = Watch(3)
    watch.check(MAX_SILENT_CHECKS)
    watch.received = True
    watch.check(MAX_SILENT_CHECKS)
    assert watch.cuts == 0


async def test_silence_does_not_count_while_reading_is_paused() -> None:
    watch = Watch(3)
    watch.reading = False
    watch.check(2 * MAX_SILENT_CHECKS)
    assert watch.cuts == 0


async def test_silent_server_is_pinged_if_pings_are_the_clients_duty() -> None:
    watch = Watch(3, pings=True)
    watch.check()
    assert watch.pings == 0
    watch.check(2)
    assert watch.pings == 2


@pytest.mark.parametrize(("requested", "timestamps", "interval"), [(None, [100.0], 0.0), (None, [100.0, 110.0], 10.0)])
async def test_interval_is_learned_from_two_pings(requested: float | None, timestamps: list[float], interval: float) -> None:
    watch = Watch(requested)
    for timestamp in timestamps:
        watch.keepalive.pinged(timestamp)
    watch.keepalive.stop()
    assert watch.keepalive.interval == interval


async def test_interval_grows_if_the_server_pings_less_often() -> None:
    watch = Watch(3)
    watch.keepalive.pinged(100.0)
    watch.keepalive.pinged(110.0)
    watch.keepalive.stop()
    assert watch.keepalive.interval == 10.0


async def test_pings_without_a_time_do_not_change_the_interval() -> None:
    watch = Watch(3)
    watch.keepalive.pinged(0.0)
    watch.keepalive.pinged(0.0)
    assert watch.keepalive.interval == 3
