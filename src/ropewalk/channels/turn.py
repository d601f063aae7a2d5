"""One turn of a channel: an object is made for a call, one of its handlers runs, and what it asked for is the answer."""

from collections.abc import Mapping

from ropewalk.channels.actions import Callee
from ropewalk.channels.channel import Channel
from ropewalk.channels.connection import Connection
from ropewalk.channels.effects import Effects
from ropewalk.channels.errors import BadCall, Reject
from ropewalk.channels.replies import rejected, returned
from ropewalk.channels.runner import Runner, guarded, run
from ropewalk.channels.state import changes
from ropewalk.channels.texts import json_object
from ropewalk.model.application import CallContext, CommandResult, Reply, State

LONGEST_SHOWN = 64

ChannelClasses = Mapping[str, type[Channel]]


class Turn:
    """Raises BadCall when it is made for an identifier that names none of the channels."""

    def __init__(self, channels: ChannelClasses, context: CallContext, identifier: str, kept: State, settled: str = "") -> None:
        params = json_object(identifier)
        if params is None:
            raise BadCall("the identifier is no JSON object")
        name = params.pop("channel", None)
        if not isinstance(name, str):
            raise BadCall("the identifier names no channel")
        if name not in channels:
            raise BadCall(f"there is no channel {quoted(name)}", "unknown_channel")
        self.name = name
        self._context = context
        self._effects = Effects(kept, settled)
        self._channel = channels[name](Connection(context), identifier, params, self._effects)

    def overrides(self, method: str) -> bool:
        return getattr(type(self._channel), method) is not getattr(Channel, method)

    def callee(self, action: str) -> Callee:
        """Raises BadCall: clients call what is declared an action, and nothing else."""
        found = type(self._channel)._actions.get(action)
        if found is None:
            raise BadCall(f"{self.name} has no action {quoted(action)}", "unknown_action")
        return found

    async def take(self, method: str, runner: Runner, *args: object, reply: Reply | None = None) -> CommandResult:
        """Raises ApplicationError, and then nothing of what the handler asked for counts.

        `reply`: the one to an action's caller, into which goes what the handler returned.
        """
        try:
            with guarded(f"{self.name}.{method}"):
                value = await run(runner, getattr(self._channel, method), *args)
                return self._answer(returned(reply, value) if reply else None)
        except Reject as no:
            return self._refusal(no, no.reason or f"rejected by {self.name}.{method}", reply)
        finally:
            self._effects.over = True

    def _refusal(self, no: Reject, reason: str, reply: Reply | None) -> CommandResult:
        effects, told = self._effects, rejected(reply, no) if reply else None
        return CommandResult(False, tuple(effects.transmissions), disconnect=effects.disconnect, reason=reason, reply=told)

    def _answer(self, reply: Reply | None) -> CommandResult:
        effects, channel = self._effects, self._channel
        return CommandResult(
            transmissions=tuple(effects.transmissions),
            streams=tuple(effects.streams),
            stopped=tuple(effects.stopped),
            stop_all=effects.stop_all,
            state=changes(self._context.state, channel.connection.state, "connection.state"),
            own=changes(effects.kept, channel.state, "self.state") | effects.own,
            presence_update=effects.presence_update,
            publications=tuple(effects.publications),
            disconnect=effects.disconnect,
            reply=reply,
        )


def quoted(name: str) -> str:
    """What a client called something, for a message; not at any length."""
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…")
