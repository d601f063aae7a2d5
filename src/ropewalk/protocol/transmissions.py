"""Transmissions: Action Cable JSON that an application writes for a client, and what the server must know of it.

The server passes them on as they are, but for three: a welcome has to carry the session's own sid, a goodbye has to say whether
to come back, and a confirmation is the server's to say, for it tells where live delivery begins.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ropewalk.model.application import Reply
from ropewalk.protocol.cable_json import welcome_json
from ropewalk.protocol.envelopes import reply_json


class Said(Struct):
    """What counts of a transmission; everything is empty in one that is no JSON object."""

    type: str = ""
    identifier: str = ""
    message: Raw = Raw(b"")


_said = msgspec.json.Decoder(Said).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def read(text: str) -> Said:
    try:
        return _said(text)
    except msgspec.DecodeError:
        return Said()


def with_welcome(texts: Sequence[str], plain: str, sid: str) -> list[str]:
    """A welcome first, whatever the application said: its own with the sid in it, or the `plain` one."""
    welcome = next((text for text in texts if read(text).type == "welcome"), None)
    if welcome is None:
        return [plain, *texts]
    fields = {**_fields(welcome), "sid": sid}
    return [msgspec.json.encode(fields).decode(), *(text for text in texts if text is not welcome)]


def refusals(texts: Sequence[str]) -> list[str]:
    """A `disconnect` that does not say whether to come back says no: a client that was refused would come back for ever."""
    return [_final(text) if read(text).type == "disconnect" else text for text in texts]


def _final(text: str) -> str:
    fields = _fields(text)
    return text if "reconnect" in fields else msgspec.json.encode({**fields, "reconnect": False}).decode()


def around(kind: str, identifier: str, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes before and what after the reply of this kind to this identifier; all of it before one that was not said."""
    for index, text in enumerate(texts):
        said = read(text)
        if said.type == kind and said.identifier == identifier:
            return list(texts[:index]), list(texts[index + 1 :])
    return list(texts), []


class TransmissionCodec(ABC):
    """The part of a `SessionCodec` that is about transmissions."""

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
