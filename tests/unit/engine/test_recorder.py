"""The recorder of a cluster: each publication is in the journal once and in order, despite faults."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.core.rules import Rulebook
from ropewalk.engine.recorder import CLAIM_SECONDS, MAX_READ_ROWS, QueuedNotes, Recorder
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Row
from ropewalk.model.messages import Publication
from ropewalk.model.rules import StreamRules
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend
from tests import journals
from tests.journals import EVER


class Cluster:
    """A store, and nodes that reach it through unreliable links."""

    def __init__(self, queue_limit: int = 100_000) -> None:
        self.clock = ManualClock()
        self.faults = Faults(latency=0.0)
        self.faults.heal()
        self.random = Random(7)
        self._air = Air(self.faults, Counts(), self.random)
        self.store = LosableStore(Rulebook(StreamRules(), ()), self.clock, self._air, queue_limit=queue_limit)

    def node(self, name: str) -> UnreliableBackend:
        return UnreliableBackend(self.store, self._air, name, lambda sid: None)

    def recorder(self, node: UnreliableBackend, journal: ArrowJournal) -> Recorder:
        return Recorder(node.record_queue, journal, self.clock, self.random.random)


async def publish(node: UnreliableBackend, stream: str, first: int, count: int) -> None:
    await node.streams.append([Publication(stream, b"%d" % number) for number in range(first, first + count)])


async def rows_of(journal: ArrowJournal) -> list[Row]:
    return [row for rows in (await journals.read_all(journal)).values() for row in rows.values()]


async def recorded(journal: ArrowJournal) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in await rows_of(journal):
        found.setdefault(row.stream, []).append(row)
    return found


def dense(rows: list[Row], count: int) -> bool:
    return [(row.offset, row.value) for row in rows] == [(number, b"%d" % number) for number in range(1, count + 1)]


async def test_publications_of_all_nodes_are_recorded_with_their_positions(tmp_path: Path) -> None:
    cluster = Cluster()
    one, two = cluster.node("one"), cluster.node("two")
    async with journals.running(tmp_path, cluster.clock) as (journal, recovered):
        recorder = cluster.recorder(one, journal)
        recorder.recover(recovered, 0.0, 0.0)
        assert await recorder.record() == 0
        await publish(two, "s", 1, 3)
        await publish(one, "s", 4, 2)
        assert await recorder.record() == 5
        assert dense((await recorded(journal))["s"], 5)
        assert await recorder.record() == 0
        assert not recorder.health()


@pytest.mark.parametrize("seed", range(8))
async def test_faults_and_crashes_record_each_publication_once(tmp_path: Path, seed: int) -> None:
    """The recorder is killed repeatedly, and responses of the store are lost. Its journal is one directory."""
    cluster = Cluster()
    random = cluster.random = Random(seed)
    publisher, published, directory = cluster.node("publisher"), 0, tmp_path / "0"
    claiming = cluster.node("recorder")
    assert await claiming.record_queue.claim(CLAIM_SECONDS)
    for life in range(6):
        journal = journals.made(directory, cluster.clock)
        recovered = journal.open(EVER)
        recorder = cluster.recorder(cluster.node("recorder"), journal)
        recorder.recover(recovered, 0.0, 0.0)
        await journal.start()
        for _ in range(10):
            count = random.randint(0, 9)
            await publish(publisher, "s", published + 1, count)
            published += count
            cluster.faults.unanswered, cluster.faults.unavailable = 0.3, 0.1
            with suppress(Unavailable):
                await recorder.record()
            cluster.faults.heal()
            cluster.clock.advance(1.0)
        killed = journals.as_if_killed(directory, tmp_path / str(life + 1))
        await journal.stop()
        directory = killed
    async with journals.running(directory, cluster.clock) as (journal, recovered):
        recorder = cluster.recorder(cluster.node("recorder"), journal)
        recorder.recover(recovered, 0.0, 0.0)
        while await recorder.record():
            pass
        assert dense((await recorded(journal))["s"], published)
        assert recorder.missing == 0


async def test_more_rows_than_one_batch_are_recorded_in_order(tmp_path: Path) -> None:
    cluster = Cluster()
    one = cluster.node("one")
    async with journals.running(tmp_path, cluster.clock) as (journal, _):
        recorder = cluster.recorder(one, journal)
        await recorder.record()
        await publish(one, "s", 1, MAX_READ_ROWS + 10)
        await recorder.stop()  # not started: no effect
        assert await recorder.record() == MAX_READ_ROWS
        assert await recorder.record() == 10
        assert dense((await recorded(journal))["s"], MAX_READ_ROWS + 10)


async def test_rows_dropped_by_a_full_queue_are_counted_and_the_rest_recorded(tmp_path: Path) -> None:
    cluster = Cluster(queue_limit=10)
    one = cluster.node("one")
    async with journals.running(tmp_path, cluster.clock) as (journal, _):
        recorder = cluster.recorder(one, journal)
        await recorder.record()
        await publish(one, "s", 1, 5)
        await recorder.record()
        await publish(one, "s", 6, 30)
        await recorder.record()
        assert recorder.missing == 20
        assert [row.offset for row in (await recorded(journal))["s"]] == [1, 2, 3, 4, 5, *range(26, 36)]
        assert recorder.gauges()["journal_missing_rows"] == 20


async def test_second_recorder_waits_and_reports_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    one, two = cluster.node("one"), cluster.node("two")
    async with (
        journals.running(tmp_path / "one", cluster.clock) as (first, _),
        journals.running(tmp_path / "two", cluster.clock) as (second, _),
    ):
        recording, waiting = cluster.recorder(one, first), cluster.recorder(two, second)
        await recording.record()
        await publish(one, "s", 1, 3)
        for _ in range(3):
            assert await waiting.record() == 0
        assert "another node records" in waiting.health()
        cluster.clock.advance(CLAIM_SECONDS + 1)
        assert await waiting.record() == 3
        logged = [record.message.partition(";")[0] for record in caplog.records if record.name == "ropewalk.journal"]
        assert logged == ["another node records what is registered", "this node records what is registered from here on"]
        assert not waiting.health()
        await publish(one, "s", 4, 1)
        assert await recording.record() == 0
        assert "another node records" in recording.health()
        assert "s" not in await recorded(first)


async def test_recorder_empties_the_queue_when_it_stops(tmp_path: Path) -> None:
    cluster = Cluster()
    one = cluster.node("one")
    async with journals.running(tmp_path, cluster.clock) as (journal, _):
        recorder = cluster.recorder(one, journal)
        await recorder.start()
        await publish(one, "s", 1, 3)
        await recorder.stop()
        assert dense((await recorded(journal))["s"], 3)


async def test_unavailable_store_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = Cluster()
    one, two = cluster.node("one"), cluster.node("two")
    async with journals.running(tmp_path, cluster.clock) as (journal, _):
        recorder = cluster.recorder(one, journal)
        await recorder.record()
        one.link.cut = True
        await publish(two, "s", 1, 3)
        with pytest.raises(Unavailable):
            await recorder.record()
        assert "not recorded" in recorder.health()
        one.link.cut = False
        assert await recorder.record() == 3
        assert not recorder.health()
        assert dense((await recorded(journal))["s"], 3)


async def test_session_rows_of_all_nodes_are_recorded(tmp_path: Path) -> None:
    cluster = Cluster()
    one, two = cluster.node("one"), cluster.node("two")
    notes = QueuedNotes(two.record_queue, cluster.clock)
    notes.write_nowait([journals.session("too early")])  # no node records yet
    await notes.finish()
    async with journals.running(tmp_path, cluster.clock) as (journal, _):
        recorder = cluster.recorder(one, journal)
        await recorder.record()
        notes.write_nowait([journals.session("not offered")])
        cluster.clock.advance(6.0)
        notes.write_nowait([journals.session("a"), journals.session("b")])
        await notes.finish()
        await recorder.record()
        assert sorted(row.sid for row in await rows_of(journal)) == ["a", "b"]
        two.link.cut = True
        notes.write_nowait([journals.session("c")])
        await notes.finish()
        assert notes.gauges()["record_queue_unsent_rows"] == 1
