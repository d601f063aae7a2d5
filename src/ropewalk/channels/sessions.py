"""Connect, restore and disconnect of a session. Takes records and returns records."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from ropewalk.channels.connection import NOBODY, Connection
from ropewalk.channels.errors import BadCall, Reject
from ropewalk.channels.runner import Runner, guarded, name_of, run, run_alone
from ropewalk.channels.state import changes
from ropewalk.channels.turn import ChannelClasses, Turn
from ropewalk.model.application import (
    CallContext,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
    State,
    merged,
)
from ropewalk.model.errors import ServerError
from ropewalk.model.messages import Publication

logger = logging.getLogger("ropewalk.channels")

ConnectionHandler = Callable[[Connection], Awaitable[None] | None]


async def connect(handler: ConnectionHandler | None, context: CallContext, runner: Runner) -> ConnectResult:
    if handler is None:
        return ConnectResult(False, reason="the app has no on_connect, so that it lets nobody in")
    connection = Connection(context, arriving=True)
    try:
        with guarded(name_of(handler)):
            await run(runner, handler, connection)
            return ConnectResult(
                True, connection.ids or NOBODY, state=changes(context.state, connection.state, "connection.state")
            )
    except Reject as no:
        return ConnectResult(False, reason=no.reason or f"rejected by {name_of(handler)}")


async def restore(channels: ChannelClasses, returned: RestoreCall, runner: Runner) -> RestoreResult:
    """One that fails does not keep the others from hearing of it."""
    round = _Round(returned.context)
    for identifier, kept in returned.subscriptions.items():
        await round.ask(channels, identifier, kept, "restored", runner)
    return RestoreResult(
        tuple(text for _, answer in round.answers for text in answer.transmissions),
        round.changed,
        {identifier: answer.own for identifier, answer in round.answers if answer.own},
        tuple(round.publications()),
        any(answer.disconnect for _, answer in round.answers),
    )


async def disconnect(
    channels: ChannelClasses, handler: ConnectionHandler | None, gone: DisconnectCall, runner: Runner
) -> tuple[Publication, ...]:
    """Every subscription's `unsubscribed`, then the app's handler. What they broadcast; the client hears nothing any more."""
    round = _Round(gone.context)
    for identifier, kept in gone.subscriptions.items():
        await round.ask(channels, identifier, kept, "unsubscribed", runner)
    if handler is not None:
        with suppress(ServerError):  # the log has it
            await run_alone(runner, handler, Connection(round.context))
    return tuple(round.publications())


class _Round:
    """The same handler of each subscription, one after another. Each sees the connection's state as the last one left it."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.changed: State = {}
        self.answers: list[tuple[str, CommandResult]] = []

    async def ask(self, channels: ChannelClasses, identifier: str, kept: State, method: str, runner: Runner) -> None:
        try:
            turn = Turn(channels, self.context, identifier, kept, settled=method)
            if not turn.overrides(method):
                return
            answer = await turn.take(method, runner)
        except BadCall as error:  # of an earlier version of the app
            logger.info("a subscription has no channel any more", extra={"reason": str(error)})
        except ServerError:
            return  # the log has it
        else:
            if answer.accepted:
                self._note(identifier, answer)

    def _note(self, identifier: str, answer: CommandResult) -> None:
        self.answers.append((identifier, answer))
        self.changed |= answer.state
        self.context = replace(self.context, state=merged(self.context.state, answer.state))

    def publications(self) -> Iterator[Publication]:
        for _, answer in self.answers:
            yield from answer.publications
