"""Conformance of `ports.StreamStore`: dense positions, exact replays, typed gaps, deduplicated uids."""

import asyncio

import pytest

from ropewalk.model.errors import PartitionChanged
from ropewalk.model.history import MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES, Gap, GapReason, Replay, last_offset
from ropewalk.model.messages import LAST_KSUID, MessageFields, Position, Publication, Registered
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.ports import StreamStore
from ropewalk.testing.backend_rig import BackendRig, at, offsets, publish

NO_HISTORY = (StreamRules(history_limit=0), StreamRules(history_ttl=0.0))


class StreamConformance(BackendRig):
    async def test_offsets_are_dense_per_stream(self) -> None:
        async with self.running() as backend:
            first = await publish(backend, "a", 3)
            other = await publish(backend, "b", 2)
            second = await publish(backend, "a", 2)
            assert offsets(first + second) == [1, 2, 3, 4, 5]
            assert offsets(other) == [1, 2]
            assert len({message.epoch for message in first + second}) == 1
            assert first[0].epoch != ""

    async def test_batch_keeps_its_order_and_message_fields(self) -> None:
        async with self.running() as backend:
            batch = [
                Publication("a", b"1", exclude_socket="sid", broadcast_type="kind"),
                Publication("b", b"2"),
                Publication("a", b"3"),
            ]
            receipts = await backend.streams.append(batch)
            assert [(item.stream, item.offset, item.duplicate) for item in receipts] == [
                ("a", 1, False),
                ("b", 1, False),
                ("a", 2, False),
            ]
            answer = await backend.streams.replay("a", Position(receipts[0].epoch, 0))
            assert isinstance(answer, Replay)
            assert [(item.epoch, item.offset, item.payload) for item in answer.messages] == [
                (receipts[0].epoch, 1, b"1"),
                (receipts[0].epoch, 2, b"3"),
            ]
            assert (answer.messages[0].exclude_socket, answer.messages[0].broadcast_type) == ("sid", "kind")
            assert answer.messages[0].timestamp == self.clock.now

    async def test_optional_message_fields_are_stored(self) -> None:
        async with self.running() as backend:
            batch = [
                Publication("a", b"1", uid=LAST_KSUID, partition_key="k", ts_producer=2**64 - 1),
                Publication("a", b"2"),
                Publication("a", b"3", uid="not a KSUID", ts_producer=5),
                Publication("b", b"1"),
                Publication("b", b"2", partition_key="b", ts_producer=6),
            ]
            receipts = await backend.streams.append(batch)
            expected = {
                "a": [MessageFields(LAST_KSUID, 2**64 - 1, "k"), MessageFields("", 0, "k"), MessageFields("", 5, "k")],
                "b": [None, MessageFields("", 6)],
            }
            for stream, epoch in (("a", receipts[0].epoch), ("b", receipts[3].epoch)):
                page = await backend.streams.page(stream, 0, 10)
                assert page is not None
                answers = (
                    await backend.streams.replay(stream, Position(epoch, 0)),
                    await backend.streams.since(stream, 0.0),
                    page,
                )
                for answer in answers:
                    assert [message.fields for message in answer.messages] == expected[stream]

    async def test_instant_append_does_not_suspend(self) -> None:
        async with self.running() as backend:
            batch = [Publication("a", b"1"), Publication("a", b"2", transient=True), Publication("a", b"3", uid="u")]
            for _ in range(2):  # the second time the stream is there, and the uid known
                append = backend.streams.append(batch)
                if not backend.streams.instant:
                    await append
                    continue
                with pytest.raises(StopIteration) as done:
                    append.send(None)
                assert [receipt.stream for receipt in done.value.value] == ["a", "a", "a"]

    async def test_unknown_stream_is_empty(self) -> None:
        async with self.running() as backend:
            assert await backend.streams.tip("a") == Position("", 0)
            assert await backend.streams.replay("a", Position("", 0)) == Replay("a", "", 0)
            assert await backend.streams.since("a", 0.0) == Replay("a", "", 0)
            assert await backend.streams.page("a", 0, 10) is None
            assert await backend.streams.summaries("", 10) == []
            for offset in (0, 7):  # at offset 0 of an epoch that had messages, too
                answer = await backend.streams.replay("a", Position("gone", offset))
                assert answer == Gap("a", GapReason.EPOCH_CHANGED, "", 1, 0)

    async def test_replay_returns_the_messages_after_a_position(self) -> None:
        async with self.running() as backend:
            messages = await publish(backend, "a", 4)
            assert await backend.streams.tip("a") == at(messages[-1])
            for message in messages:
                answer = await backend.streams.replay("a", at(message))
                assert answer == Replay("a", message.epoch, 4, tuple(messages[message.offset :]))
            for epoch in ("", messages[0].epoch):
                answer = await backend.streams.replay("a", Position(epoch, 0))
                assert answer == Replay("a", messages[0].epoch, 4, tuple(messages))

    async def test_replay_is_complete_back_to_the_oldest_message_kept(self) -> None:
        async with self.running() as backend:
            messages = await publish(backend, "a", 8)
            epoch = messages[0].epoch
            joined = await backend.streams.replay("a", Position(epoch, 3))
            assert joined == Replay("a", epoch, 8, tuple(messages[3:]))
            for position in (Position(epoch, 2), Position(epoch, 0), Position("", 0)):
                assert await backend.streams.replay("a", position) == Gap("a", GapReason.TRIMMED, epoch, 4, 8, rest=joined)

    async def test_long_history_is_read_in_bounded_answers(self) -> None:
        large, many = [b"x" * 60_000] * 14, [b"1"] * 1500
        async with self.running(StreamRules(history_limit=2000, history_ttl=100.0)) as backend:
            for stream, payloads in (("large", large), ("many", many)):
                for start in range(0, len(payloads), 250):
                    await backend.streams.append([Publication(stream, each) for each in payloads[start : start + 250]])
                epoch = (await backend.streams.tip(stream)).epoch
                for first in (
                    await backend.streams.replay(stream, Position(epoch, 0)),
                    await backend.streams.since(stream, self.clock.now),
                ):
                    pages = await _rest(backend.streams, first)
                    sizes = [sum(message.size + MESSAGE_OVERHEAD_BYTES for message in page) for page in pages]
                    assert max(sizes) <= MAX_ANSWER_BYTES
                    assert min(sizes[:-1]) > MAX_ANSWER_BYTES // 2
                    assert offsets([message for page in pages for message in page]) == list(range(1, len(payloads) + 1))
                    assert [message.payload for page in pages for message in page] == payloads

    async def test_message_larger_than_an_answer_is_an_answer_of_its_own(self) -> None:
        async with self.running() as backend:
            for payload in (b"1", b"x" * (MAX_ANSWER_BYTES + 1), b"3"):
                await backend.streams.append([Publication("a", payload)])
            first = await backend.streams.replay("a", Position("", 0))
            assert [offsets(page) for page in await _rest(backend.streams, first)] == [[1], [2], [3]]

    async def test_what_follows_a_gap_is_read_in_bounded_answers(self) -> None:
        async with self.running() as backend:
            receipts = [(await backend.streams.append([Publication("a", b"x" * 100_000)]))[0] for _ in range(8)]
            epoch = receipts[0].epoch
            for reason, gap in (
                (GapReason.TRIMMED, await backend.streams.replay("a", Position(epoch, 1))),
                (GapReason.EPOCH_CHANGED, await backend.streams.replay("a", Position("other", 1))),
                (GapReason.TRIMMED, await backend.streams.since("a", 0.0)),
            ):
                assert isinstance(gap, Gap)
                assert isinstance(gap.rest, Replay)
                assert (gap.reason, gap.oldest, gap.tip, last_offset(gap)) == (reason, 4, 8, 5)
                assert [offsets(page) for page in await _rest(backend.streams, gap.rest)] == [[4, 5], [6, 7], [8]]

    async def test_history_that_is_trimmed_between_two_answers_is_a_gap(self) -> None:
        async with self.running() as backend:
            for _ in range(5):
                await backend.streams.append([Publication("a", b"x" * 100_000)])
            first = await backend.streams.replay("a", Position("", 0))
            await publish(backend, "a", 4)
            answer = await backend.streams.replay("a", Position(first.epoch, last_offset(first)))
            assert isinstance(answer, Gap)
            assert (last_offset(first), answer.reason, answer.oldest, answer.tip) == (2, GapReason.TRIMMED, 5, 9)
            assert answer.rest is not None
            assert offsets(answer.rest.messages) == [5, 6, 7, 8, 9]

    async def test_page_ends_where_an_answer_does(self) -> None:
        async with self.running() as backend:
            for _ in range(5):
                await backend.streams.append([Publication("a", b"x" * 100_000)])
            after, pages = 0, []
            while (page := await backend.streams.page("a", after, 100)) is not None:
                pages.append(offsets(page.messages))
                assert (page.oldest, page.tip) == (1, 5)
                if page.next_offset is None:
                    break
                after = page.next_offset
            assert pages == [[1, 2], [3, 4], [5]]

    async def test_position_ahead_of_the_tip_or_of_another_epoch_is_a_gap(self) -> None:
        async with self.running() as backend:
            messages = await publish(backend, "a", 2)
            epoch = messages[0].epoch
            assert await backend.streams.replay("a", Position(epoch, 3)) == Gap("a", GapReason.AHEAD, epoch, 1, 2)
            gap = Gap("a", GapReason.EPOCH_CHANGED, epoch, 1, 2, rest=Replay("a", epoch, 2, tuple(messages)))
            for position in (Position("other", 0), Position("other", 1), Position("other", 9), Position("", 1)):
                assert await backend.streams.replay("a", position) == gap

    async def test_messages_expire_by_their_own_age(self) -> None:
        async with self.running() as backend:
            first = await publish(backend, "a")
            await self.advance(60)
            second = await publish(backend, "a")
            await self.advance(40)
            epoch = first[0].epoch
            kept = Replay("a", epoch, 2, tuple(second))
            assert await backend.streams.replay("a", Position(epoch, 1)) == kept
            assert await backend.streams.replay("a", Position(epoch, 0)) == Gap("a", GapReason.TRIMMED, epoch, 2, 2, rest=kept)

    async def test_tip_outlives_the_history(self) -> None:
        async with self.running() as backend:
            messages = await publish(backend, "a", 3)
            await self.advance(100)
            await backend.sweep()
            epoch = messages[0].epoch
            assert await backend.streams.tip("a") == at(messages[-1])
            assert await backend.streams.replay("a", Position(epoch, 3)) == Replay("a", epoch, 3)
            assert await backend.streams.replay("a", Position(epoch, 2)) == Gap("a", GapReason.TRIMMED, epoch, 4, 3)
            assert offsets(await publish(backend, "a")) == [4]

    async def test_positions_are_assigned_without_history(self) -> None:
        for rules in NO_HISTORY:
            async with self.running(rules) as backend:
                messages = await publish(backend, "a", 3)
                epoch = messages[0].epoch
                assert offsets(messages) == [1, 2, 3]
                assert await backend.streams.replay("a", Position(epoch, 3)) == Replay("a", epoch, 3)
                assert await backend.streams.replay("a", Position(epoch, 2)) == Gap("a", GapReason.TRIMMED, epoch, 4, 3)
                assert await backend.streams.since("a", 0.0) == Gap("a", GapReason.TRIMMED, epoch, 4, 3)
                assert await backend.streams.since("a", self.clock.now + 1) == Replay("a", epoch, 3)

    async def test_rules_apply_to_the_streams_they_match(self) -> None:
        async with self.running(rules=[StreamRule("short/*", history_limit=1)]) as backend:
            await publish(backend, "short/1", 3)
            await publish(backend, "long/1", 3)
            kept = {summary.stream: summary.kept for summary in await backend.streams.summaries("", 10)}
            assert kept == {"short/1": 1, "long/1": 3}

    async def test_since_returns_the_messages_from_that_time_on(self) -> None:
        async with self.running() as backend:
            start = self.clock.now
            await publish(backend, "a")
            await self.advance(10)
            later = await publish(backend, "a", 2)
            epoch = later[0].epoch
            assert offsets((await backend.streams.since("a", start)).messages) == [1, 2, 3]
            assert await backend.streams.since("a", start + 0.5) == Replay("a", epoch, 3, tuple(later))
            assert await backend.streams.since("a", start + 10) == Replay("a", epoch, 3, tuple(later))
            assert await backend.streams.since("a", start + 10.5) == Replay("a", epoch, 3)

    async def test_since_reports_trimmed_and_expired_messages(self) -> None:
        async with self.running() as backend:
            older = await publish(backend, "a", 3)
            trimmed_at = self.clock.now
            await self.advance(10)
            kept = await publish(backend, "a", 5)
            rest = Replay("a", older[0].epoch, 8, tuple(kept))
            for timestamp in (0.0, trimmed_at):
                answer = await backend.streams.since("a", timestamp)
                assert answer == Gap("a", GapReason.TRIMMED, older[0].epoch, 4, 8, rest=rest)
            assert await backend.streams.since("a", trimmed_at + 1) == rest
            published_at = self.clock.now
            await self.advance(100)
            assert await backend.streams.since("a", published_at) == Gap("a", GapReason.TRIMMED, older[0].epoch, 9, 8)
            assert await backend.streams.since("a", published_at + 1) == Replay("a", older[0].epoch, 8)

    async def test_uid_is_registered_once_per_stream(self) -> None:
        async with self.running() as backend:
            [first] = await backend.streams.append([Publication("a", b"1", uid="u")])
            await publish(backend, "a", 2)
            [again] = await backend.streams.append([Publication("a", b"1", uid="u")])
            assert (first.duplicate, again.duplicate) == (False, True)
            assert at(again) == at(first)
            assert (await backend.streams.tip("a")).offset == 3
            batch = [Publication("b", b"1", uid="u"), Publication("b", b"2"), Publication("b", b"1", uid="u")]
            appended = await backend.streams.append([*batch, Publication("c", b"1", uid="u")])
            assert [(item.offset, item.duplicate) for item in appended] == [(1, False), (2, False), (1, True), (1, False)]

    async def test_uid_expires_after_its_ttl(self) -> None:
        async with self.running() as backend:
            known = []
            for pause in (0, 59, 1):
                await self.advance(pause)
                [again] = await backend.streams.append([Publication("a", b"1", uid="u")])
                known.append(again.duplicate)
            assert known == [False, True, False]

    async def test_stream_keeps_the_partition_key_of_its_first_publication(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([Publication("a", b"1", partition_key="k"), Publication("b", b"1")])
            await backend.streams.append([Publication("a", b"2"), Publication("a", b"3", partition_key="k")])
            await backend.streams.append([Publication("b", b"2", partition_key="b")])
            assert [await backend.streams.partition_key(stream) for stream in ("a", "b", "c")] == ["k", "b", "c"]

    async def test_different_partition_key_rejects_the_whole_batch(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([Publication("a", b"1", partition_key="k"), Publication("b", b"1")])
            refused = [
                [Publication("c", b"1"), Publication("a", b"2", partition_key="other")],
                [Publication("c", b"1"), Publication("b", b"2", partition_key="other")],
                [Publication("c", b"1", partition_key="k"), Publication("c", b"2", partition_key="other")],
                [Publication("c", b"1"), Publication("c", b"2", partition_key="k")],
            ]
            for batch in refused:
                with pytest.raises(PartitionChanged):
                    await backend.streams.append(batch)
            assert [(await backend.streams.tip(stream)).offset for stream in ("a", "b", "c")] == [1, 1, 0]

    async def test_rejected_partition_key_does_not_fail_concurrent_appends(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([Publication("a", b"1", partition_key="k")])
            answers = await asyncio.gather(
                backend.streams.append([Publication("a", b"2")]),
                backend.streams.append([Publication("a", b"3", partition_key="other")]),
                backend.streams.append([Publication("a", b"4", partition_key="k")]),
                return_exceptions=True,
            )
            assert [isinstance(answer, PartitionChanged) for answer in answers] == [False, True, False]
            assert (await backend.streams.tip("a")).offset == 3

    async def test_summaries_are_paged_by_name(self) -> None:
        async with self.running() as backend:
            for stream in ("b", "d", "a", "c"):
                await publish(backend, stream, 6)
            first = await backend.streams.summaries("", 3)
            rest = await backend.streams.summaries("c", 3)
            assert [summary.stream for summary in first + rest] == ["a", "b", "c", "d"]
            assert {(summary.tip, summary.oldest, summary.kept) for summary in first} == {(6, 2, 5)}

    async def test_page_returns_kept_messages_and_the_next_offset(self) -> None:
        async with self.running() as backend:
            messages = await publish(backend, "a", 8)
            first = await backend.streams.page("a", 0, 3)
            assert first is not None
            assert (first.messages, first.next_offset) == (tuple(messages[3:6]), 6)
            assert (first.epoch, first.tip, first.oldest) == (messages[0].epoch, 8, 4)
            last = await backend.streams.page("a", 6, 3)
            assert last is not None
            assert (last.messages, last.next_offset) == (tuple(messages[6:]), None)


async def _rest(streams: StreamStore, answer: Replay | Gap) -> list[tuple[Registered, ...]]:
    """The messages of an answer, and of those that follow it."""
    pages = [answer.messages]
    while isinstance(answer, Replay) and answer.more:
        answer = await streams.replay(answer.stream, Position(answer.epoch, last_offset(answer)))
        pages.append(answer.messages)
    assert isinstance(answer, Replay)
    return pages
