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
    Raising: "test_a_hostile_token_gets_an_answer_and_never_raises",
    RefusingForAReasonOfItsOwn: "test_a_hostile_token_gets_an_answer_and_never_raises",
    Remembering: "test_hostile_requests_change_nothing_for_the_next_one",
    SubscribingToNothing: "test_a_hostile_identifier_gets_an_answer_and_never_raises",
    RejectingWithoutAReason: "test_a_hostile_identifier_gets_an_answer_and_never_raises",
    DecidingBlindly: "test_a_decision_that_names_what_is_not_there_is_none",
    ForgettingItsEnds: "test_an_end_is_remembered_and_what_was_kept_up_to_it_is_gone",
    Keeping: "test_what_is_discarded_is_gone",
    AcknowledgingBeforeItIsWritten: "test_rows_can_be_read_as_soon_as_they_are_acknowledged",
    Reordering: "test_rows_come_back_by_shard_at_dense_positions_in_the_order_they_were_handed_over",
    TellingOfMoreThanThereIs: "test_writing_nothing_is_harmless",
    GoingBack: "test_a_consumer_stays_where_it_was_pinned_moves_forward_only_and_outlives_a_stop",
    TakingAnyShardForArchived: "test_what_the_archive_has_is_remembered_and_never_goes_back",
}


@pytest.mark.parametrize(("suite", "test"), BROKEN.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_an_adapter_that_was_broken_is_found_out(suite: Suite, test: str, tmp_path: Path) -> None:
    assert await failing(suite, tmp_path, test) == {test}


@pytest.mark.parametrize("suite", [Auth, Staged, Journaled])
async def test_the_same_adapter_unbroken_is_not(suite: Suite, tmp_path: Path) -> None:
    assert await failing(suite, tmp_path) == set()
