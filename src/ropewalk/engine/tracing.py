"""What `--debug` adds to the log: every command, every write, every registered message, every call of the application.

The logger `ropewalk.wire` is at debug level with `--debug` only (`app/logs.py`). Whatever is traced is wrapped when it is made,
so that nothing here costs anything otherwise. A sid is shown by its beginning, and headers and state of clients are not shown:
who reads the log must not be able to take a session over.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from ropewalk.model.application import Admission, Answer, Call, Caller, Comeback, Farewell, Greeting
from ropewalk.model.commands import Command
from ropewalk.model.messages import Registered
from ropewalk.ports import Application, Connection
from ropewalk.protocol.websocket_frame import readable

logger = logging.getLogger("ropewalk.wire")

SHOWN_OF_SID = 6

Deliver = Callable[[Sequence[Registered]], None]


def tracing() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def tag_of(sid: str) -> str:
    """What the log calls a session: the whole sid would let a reader of the log resume it."""
    return sid[:SHOWN_OF_SID]


def received(sid: str, frame: bytes) -> None:
    logger.debug("in", extra={"session": tag_of(sid), "data": frame.decode(errors="replace")})


def submitted(sid: str, command: Command) -> None:
    """A command that did not come as a frame of its own, such as those of an SSE request."""
    logger.debug("in", extra={"session": tag_of(sid), "data": command})


def traced_delivery(deliver: Deliver) -> Deliver:
    """`deliver`, and a line for each message before it."""

    def tell(messages: Sequence[Registered]) -> None:
        for message in messages:
            position = {"epoch": message.epoch, "offset": message.offset} if message.offset else {"transient": True}
            data = message.payload.decode(errors="replace")
            logger.debug("registered", extra={"stream": message.stream, **position, "data": data})
        deliver(messages)

    return tell


def traced_connection(connection: Connection, sid: str) -> Connection:
    """`connection`, and a line for each write to it."""
    return cast(Connection, _TracedConnection(connection, sid))


def traced_application(application: Application) -> Application:
    """`application`, and a line for each call of it, with what it was asked and answered."""
    return cast(Application, _TracedApplication(application))


class _TracedConnection:
    def __init__(self, connection: Connection, sid: str) -> None:
        self._connection = connection
        self._sid = sid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def write(self, data: bytes) -> None:
        shown = readable(data).replace(self._sid, f"{tag_of(self._sid)}…")
        logger.debug("out", extra={"session": tag_of(self._sid), "data": shown})
        self._connection.write(data)

    def close(self, code: int, text: str) -> None:
        logger.debug("close", extra={"session": tag_of(self._sid), "code": code, "reason": text})
        self._connection.close(code, text)


class _TracedApplication:
    def __init__(self, application: Application) -> None:
        self._application = application

    def __getattr__(self, name: str) -> Any:
        return getattr(self._application, name)

    async def connect(self, caller: Caller) -> Admission:
        admission = await self._application.connect(caller)
        self._told("connect", caller, accepted=admission.accepted, ids=admission.ids, sent=admission.transmissions)
        return admission

    async def command(self, call: Call) -> Answer:
        answer = await self._application.command(call)
        asked = {"identifier": call.identifier, "data": call.data}
        self._told(
            call.action, call.caller, **asked, accepted=answer.accepted, streams=answer.streams, sent=answer.transmissions
        )
        return answer

    async def restored(self, comeback: Comeback) -> Greeting:
        greeting = await self._application.restored(comeback)
        self._told("restored", comeback.caller, identifiers=[*comeback.subscriptions], sent=greeting.transmissions)
        return greeting

    async def disconnect(self, farewell: Farewell) -> None:
        self._told("disconnect", farewell.caller, identifiers=[*farewell.subscriptions])
        await self._application.disconnect(farewell)

    def _told(self, call: str, caller: Caller, **fields: object) -> None:
        logger.debug("application", extra={"session": tag_of(caller.sid), "call": call, **fields})
