"""The suites for authenticators, channels, staging and journals find out adapters that were broken on purpose."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ropewalk.adapters.apps.noauth import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.staging.files import FileStaging
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import Consumer, Row, ShardMark, ShardSpan
from ropewalk.model.limits import JournalLimits
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, Rejected, Subscribed
from ropewalk.model.transactions import Decision, StagedPiece
from ropewalk.ports import Authenticator, Channels, Staging
from ropewalk.testing.auth import AuthenticatorSuite, ChannelsSuite, request_with
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.journal import AcknowledgingConformance, KeptJournal
from ropewalk.testing.staging import StagingConformance
from tests.unit.testing.suites import Suite, failing

# --- authenticators and channels -------------------------------------------------------------------------------------


class Auth(AuthenticatorSuite):
    kind: type[Authenticator] = NoAuth

    def make(self) -> Authenticator:
        return self.kind()

    def welcome_request(self) -> ConnectRequest:
        return request_with("")


class Raising(Auth):
    class kind(NoAuth):
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
            request.token.encode("ascii")
            return await super().authenticate(request, sid)


class RefusingForAReasonOfItsOwn(Auth):
    class kind:
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Refused("i do not like you") if request.token else Accepted("me")


class Remembering(Auth):
    class kind:
        seen = 0

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            self.seen += 1
            return Accepted(f"guest {self.seen}")


class Answers(ChannelsSuite):
    kind: type[Channels]

    def make(self) -> Channels:
        return self.kind()

    def welcome_identifier(self) -> str:
        return '{"channel":"$pubsub","stream_name":"chat"}'


class SubscribingToNothing(Answers):
    class kind:
        async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
            return Subscribed(())


class RejectingWithoutAReason(Answers):
    class kind(PubSubChannel):
        def __init__(self) -> None:
            super().__init__(public=True)

        async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
            answer = await super().subscribe(ids, identifier)
            return answer if isinstance(answer, Subscribed) else Rejected("")


# --- staging ---------------------------------------------------------------------------------------------------------


class Staged(StagingConformance):
    kind: type[FileStaging] = FileStaging

    def make(self, directory: Path) -> Staging:
        return self.kind(directory / "transactions")


class DecidingBlindly(Staged):
    class kind(FileStaging):
        async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
            await super().decide(app, last, decision)
            return []


class ForgettingItsEnds(Staged):
    class kind(FileStaging):
        async def finish(self, app: str, batch: int) -> None:
            await self.discard_batch(app, batch)


class Keeping(Staged):
    class kind(FileStaging):
        async def discard_batch(self, app: str, batch: int) -> None: ...


# --- journals --------------------------------------------------------------------------------------------------------


class Journaled(AcknowledgingConformance):
    kind: type[ArrowJournal] = ArrowJournal

    def make(self, directory: Path) -> KeptJournal:
        return self.kind(directory, ManualClock(), JournalLimits(shards=3), durability="journal")


class AcknowledgingBeforeItIsWritten(Journaled):
    class kind(ArrowJournal):
        async def write(self, rows: Sequence[Row]) -> None:
            self.note(rows)


class Reordering(Journaled):
    class kind(ArrowJournal):
        async def write(self, rows: Sequence[Row]) -> None:
            await super().write(rows[::-1])


class TellingOfMoreThanThereIs(Journaled):
    class kind(ArrowJournal):
        def spans(self) -> list[ShardSpan]:
            return [ShardSpan(span.shard, span.epoch, span.first, span.end + 1) for span in super().spans()]


class GoingBack(Journaled):
    class kind(ArrowJournal):
        async def move(self, name: str, marks: Mapping[int, ShardMark]) -> Consumer:
            await self.forget(name)
            return await self.pin(name, marks)


class TakingAnyShardForArchived(Journaled):
    class kind(ArrowJournal):
        def archived(self, positions: dict[int, int]) -> None:
            try:
                super().archived(positions)
            except BadRequest:
                return


# --- each is found out -----------------------------------------------------------------------------------------------

BROKEN = {
    Raising: "test_hostile_token_is_answered_without_an_exception",
    RefusingForAReasonOfItsOwn: "test_hostile_token_is_answered_without_an_exception",
    Remembering: "test_hostile_requests_do_not_affect_the_next_one",
    SubscribingToNothing: "test_hostile_identifier_is_answered_without_an_exception",
    RejectingWithoutAReason: "test_hostile_identifier_is_answered_without_an_exception",
    DecidingBlindly: "test_decision_with_missing_pieces_is_rejected",
    ForgettingItsEnds: "test_finished_batch_is_recorded_and_its_pieces_are_removed",
    Keeping: "test_discarded_pieces_are_removed",
    AcknowledgingBeforeItIsWritten: "test_rows_can_be_read_as_soon_as_they_are_acknowledged",
    Reordering: "test_rows_have_dense_positions_per_shard_in_write_order",
    TellingOfMoreThanThereIs: "test_empty_journal_has_no_rows_consumers_or_unknown_shards",
    GoingBack: "test_consumer_only_moves_forward_and_survives_a_restart",
    TakingAnyShardForArchived: "test_archived_end_only_moves_forward",
}


@pytest.mark.parametrize(("suite", "test"), BROKEN.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_an_adapter_that_was_broken_is_found_out(suite: Suite, test: str, tmp_path: Path) -> None:
    assert await failing(suite, tmp_path, test) == {test}


@pytest.mark.parametrize("suite", [Auth, Staged, Journaled])
async def test_the_same_adapter_unbroken_is_not(suite: Suite, tmp_path: Path) -> None:
    assert await failing(suite, tmp_path) == set()
