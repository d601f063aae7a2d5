"""Debug logging for `--debug`: every command, write, registered message and application call.

The logger `ropewalk.wire` is at debug level only with `--debug` (`app/logs.py`). Traced objects are wrapped when they are
created, so that tracing costs nothing when it is off. Only the beginning of a sid is logged, and no headers or state of
clients: a reader of the log must not be able to take a session over.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.commands import Command
from ropewalk.model.messages import Deliverable, expand_runs
from ropewalk.ports import Application, Connection, Deliver

logger = logging.getLogger("ropewalk.wire")

SHOWN_OF_SID = 6


def tracing() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def short_sid(sid: str) -> str:
    """The session's name in the log. With the whole sid a reader of the log could resume the session."""
    return sid[:SHOWN_OF_SID]


def received(sid: str, frame: bytes) -> None:
    logger.debug("in", extra={"session": short_sid(sid), "data": frame.decode(errors="replace")})


def submitted(sid: str, command: Command) -> None:
    """A command that did not come as a frame of its own, such as those of an SSE request."""
    logger.debug("in", extra={"session": short_sid(sid), "data": command})


def traced_delivery(deliver: Deliver) -> Deliver:
    """Returns `deliver` with a log line before each message."""

    def log_and_deliver(messages: Sequence[Deliverable]) -> None:
        for message in expand_runs(messages):
            position = {"epoch": message.epoch, "offset": message.offset} if message.offset else {"transient": True}
            data = message.payload.decode(errors="replace")
            logger.debug("registered", extra={"stream": message.stream, **position, "data": data})
        deliver(messages)

    return log_and_deliver


def traced_connection(connection: Connection, sid: str, readable: Callable[[bytes], str]) -> Connection:
    """Returns `connection` with a log line for each write. `readable` converts wire bytes to text."""
    return cast(Connection, _TracedConnection(connection, sid, readable))


def traced_application(application: Application) -> Application:
    """Returns `application` with a log line for each call and its result."""
    return cast(Application, _TracedApplication(application))


class _TracedConnection:
    direct = None  # direct writes would bypass the trace

    def __init__(self, connection: Connection, sid: str, readable: Callable[[bytes], str]) -> None:
        self._connection = connection
        self._sid = sid
        self._readable = readable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def write(self, data: bytes) -> None:
        shown = self._readable(data).replace(self._sid, f"{short_sid(self._sid)}…")
        logger.debug("out", extra={"session": short_sid(self._sid), "data": shown})
        self._connection.write(data)

    def close(self, code: int, text: str) -> None:
        logger.debug("close", extra={"session": short_sid(self._sid), "code": code, "reason": text})
        self._connection.close(code, text)


class _TracedApplication:
    def __init__(self, application: Application) -> None:
        self._application = application

    def __getattr__(self, name: str) -> Any:
        return getattr(self._application, name)

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        connect_result = await self._application.connect(context, wanted)
        self._log_call(
            "connect", context, accepted=connect_result.accepted, ids=connect_result.ids, sent=connect_result.transmissions
        )
        return connect_result

    async def command(self, call: CommandCall) -> CommandResult:
        answer = await self._application.command(call)
        asked = {"identifier": call.identifier, "data": call.data}
        self._log_call(
            call.action, call.context, **asked, accepted=answer.accepted, streams=answer.streams, sent=answer.transmissions
        )
        return answer

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        restore_result = await self._application.restored(restore_call)
        self._log_call(
            "restored", restore_call.context, identifiers=[*restore_call.subscriptions], sent=restore_result.transmissions
        )
        return restore_result

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        self._log_call("disconnect", disconnect_call.context, identifiers=[*disconnect_call.subscriptions])
        await self._application.disconnect(disconnect_call)

    def _log_call(self, call: str, context: CallContext, **fields: object) -> None:
        logger.debug("application", extra={"session": short_sid(context.sid), "call": call, **fields})
