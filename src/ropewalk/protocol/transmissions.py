"""Transmissions: Action Cable JSON that an application sends to a client.

The server forwards them unchanged, with three exceptions: it adds the session's sid to a welcome and `reconnect` to a
disconnect, and it replaces a confirmation by its own, which has the position where live delivery begins.

The reply to an action is in the envelope `message`, because Action Cable libraries pass only that to their users. Keys that
begin with `$` are reserved for the server.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import encode

from ropewalk.model.application import Reply
from ropewalk.protocol.cable_json import welcome_json

REPLY = "reply"
"""The `type` of the frame, for clients that read it."""

REPLY_TO_KEY = "$reply_to"


def reply_json(identifier: str, reply: Reply) -> str:
    """The text of the frame for the caller of the action."""
    message: dict[str, object] = {REPLY_TO_KEY: Raw(reply.to), "action": reply.action}
    if reply.code:
        message["error"] = {"code": reply.code, **({"message": reply.text} if reply.text else {})}
    else:
        message["result"] = Raw(reply.result)
    return encode({"type": REPLY, "identifier": identifier, "message": message}).decode()


class ParsedTransmission(Struct):
    """The fields the server reads. All are empty if the transmission is not a JSON object."""

    type: str = ""
    identifier: str = ""
    message: Raw = Raw(b"")


_parse = msgspec.json.Decoder(ParsedTransmission).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def read(text: str) -> ParsedTransmission:
    try:
        return _parse(text)
    except msgspec.DecodeError:
        return ParsedTransmission()


def with_welcome(texts: Sequence[str], plain: str, sid: str) -> list[str]:
    """The transmissions with a welcome first: the application's, with the sid added, or the `plain` one."""
    welcome = next((text for text in texts if read(text).type == "welcome"), None)
    if welcome is None:
        return [plain, *texts]
    fields = {**_fields(welcome), "sid": sid}
    return [msgspec.json.encode(fields).decode(), *(text for text in texts if text is not welcome)]


def refusals(texts: Sequence[str]) -> list[str]:
    """Add `"reconnect": false` to a `disconnect` without `reconnect`. Otherwise rejected clients would keep reconnecting."""
    return [_final(text) if read(text).type == "disconnect" else text for text in texts]


def _final(text: str) -> str:
    fields = _fields(text)
    return text if "reconnect" in fields else msgspec.json.encode({**fields, "reconnect": False}).decode()


def around(kind: str, identifier: str, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The transmissions before and after the reply of this kind to this identifier. Without such a reply, all are before."""
    for index, text in enumerate(texts):
        parsed = read(text)
        if parsed.type == kind and parsed.identifier == identifier:
            return list(texts[:index]), list(texts[index + 1 :])
    return list(texts), []


class TransmissionCodec(ABC):
    """The methods of a `SessionCodec` for transmissions."""

    @abstractmethod
    def transmission(self, text: str) -> bytes: ...

    @abstractmethod
    def reject_subscription(self, identifier: str) -> bytes: ...

    def accepted(self, sid: str, texts: Sequence[str]) -> list[bytes]:
        return self._all(with_welcome(texts, welcome_json(sid, None).decode(), sid))

    def refused(self, texts: Sequence[str]) -> list[bytes]:
        return self._all(refusals(texts))

    def around_confirmation(self, identifier: str, texts: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        before, after = around("confirm_subscription", identifier, texts)
        return self._all(before), self._all(after)

    def rejected(self, identifier: str, texts: Sequence[str]) -> list[bytes]:
        before, after = around("reject_subscription", identifier, texts)
        return [*self._all(before), self.reject_subscription(identifier), *self._all(after)]

    def reply(self, identifier: str, reply: Reply) -> bytes:
        return self.transmission(reply_json(identifier, reply))

    def _all(self, texts: Sequence[str]) -> list[bytes]:
        return [self.transmission(text) for text in texts]
