"""Event ids of server-sent events: the positions of all streams of a connection in one id.

A client keeps the last id it saw and nothing else, so each id must be enough to resume every stream of the connection.

    7/e1/chat                        one stream, as the reference server writes it: offset, epoch, stream
    ;7/e1/chat;12/e2/other           several streams
    ;7/e1/chat;KEY:6/e1/chat …       a stream of several subscriptions at different offsets: an entry for each, with the key of
                                     the subscription

Streams and epochs are percent-encoded unless they are plain ASCII: clients send the id back in a header.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from urllib.parse import quote, unquote

from msgspec import Struct

from ropewalk.model.errors import BadRequest
from ropewalk.model.messages import Position

MAX_BYTES = 8000
"""Maximum size of an id. Common proxies, and our own parser, accept header lines of 8 KiB."""

PIECE_BYTES = 65_536

_MAX_OFFSET = 2**63 - 1
_OFFSET_DIGITS = 19
_EPOCH_ROOM = 16  # minimum reserved for an epoch, which is empty while the stream is unknown
_KEY_BYTES = 6  # of a digest; two subscriptions of one connection must differ, and the client chooses both
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "%;")
_SAFE_EPOCH = _SAFE.replace("/", "")
_ENTRY = re.compile(r"(?:([\w-]{8}):)?([0-9]{1,19})/([^/;]*)/([^;]+)", re.ASCII)
_PLAIN = re.compile(r"([0-9]{1,19})/([^/]*)/(.+)", re.DOTALL)
_LINE = re.compile(rb"id: (?:([\w-]{8}):)?([0-9]+)/([^/]*)/(.+)")
_LINES = re.compile(rb"\nid: [^\n]*(?:\nid: [^\n]*)*")


class LastEventId(Struct, frozen=True):
    """The last positions of a reconnecting client: by stream, and of single subscriptions by (key, stream)."""

    positions: dict[str, Position] = {}
    own: dict[tuple[str, str], Position] = {}

    def of(self, identifier: str) -> dict[str, Position]:
        """The positions of one subscription."""
        if not self.own:
            return self.positions
        key = subscription_key(identifier)
        return {**self.positions, **{stream: position for (each, stream), position in self.own.items() if each == key}}


def subscription_key(identifier: str) -> str:
    """A digest of the identifier, of eight characters."""
    digest = blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
    return urlsafe_b64encode(digest).decode()


def parse_event_id(text: str) -> LastEventId:
    """Parse an id sent by a client; empty for none. Raises BadRequest."""
    if not text:
        return LastEventId()
    if len(text) > MAX_BYTES:
        raise BadRequest(f"Last-Event-ID is longer than {MAX_BYTES} bytes")
    if not text.startswith(";"):
        stream, position = _read(_PLAIN.fullmatch(text), 1)
        return LastEventId({stream: position})
    positions: dict[str, Position] = {}
    own: dict[tuple[str, str], Position] = {}
    for entry in text[1:].split(";"):
        found = _ENTRY.fullmatch(entry)
        stream, position = _read(found, 2)
        if found and found[1]:
            own[found[1], stream] = position
        else:
            positions[stream] = position
    return LastEventId(positions, own)


def _read(found: re.Match[str] | None, first: int) -> tuple[str, Position]:
    if found is None or any("\ud800" <= character <= "\udfff" for character in found[0]):
        raise BadRequest("Last-Event-ID must be <offset>/<epoch>/<stream>, or ';' and several of these with ';' between")
    offset, epoch, stream = int(found[first]), unquote(found[first + 1]), unquote(found[first + 2])
    # A stream without a publication has the offset 0 and no epoch.
    if offset > _MAX_OFFSET or (offset and not epoch):
        raise BadRequest("Last-Event-ID has an invalid position")
    return stream, Position(epoch, offset)


def id_line(stream: str, epoch: str, offset: int, key: bytes = b"") -> bytes:
    """The line with which a codec reports the position of a stream. `key`: of the subscription, followed by a colon."""
    return b"id: %b%d/%b/%b\n" % (key, offset, _quoted(epoch, _SAFE_EPOCH), _quoted(stream, _SAFE))


def _quoted(text: str, safe: str) -> bytes:
    return quote(text, safe=safe, errors="surrogatepass").encode()


class EventIds:
    """The positions of one connection, advanced by the id lines of its codec.

    They advance when events are written to the client, not when they are encoded, so an id never covers pending events.
    """

    def __init__(
        self, subscriptions: Mapping[str, Sequence[str]], known: Mapping[str, Mapping[str, Position]], keyed: bool
    ) -> None:
        """`subscriptions`: the streams of each identifier; `known`: the client's positions; `keyed`: id lines have the key of
        their subscription."""
        self._keys: dict[bytes, list[bytes]] = {}
        self._positions: dict[tuple[bytes, bytes], tuple[bytes, int]] = {}
        self._delivered: set[tuple[bytes, bytes]] = set()
        self._entries: dict[bytes, bytes] = {}
        self._uneven: set[bytes] = set()  # streams with subscriptions at different offsets
        for identifier, streams in subscriptions.items():
            key = subscription_key(identifier).encode() if keyed else b""
            for stream in dict.fromkeys(streams):
                name = _quoted(stream, _SAFE)
                self._keys.setdefault(name, []).append(key)
                if position := known.get(identifier, {}).get(stream):
                    self._positions[key, name] = _quoted(position.epoch, _SAFE_EPOCH), position.offset
        for name in self._keys:
            self._print(name)
        self.plain = not keyed and len(self._keys) == 1  # ids are as the codec writes them

    def longest(self) -> int:
        """The maximum length of an id of this connection."""
        size = 0
        for name, keys in self._keys.items():
            for key in keys:
                epoch, _ = self._positions.get((key, name), (b"", 0))
                prefix = len(key) + 1 if len(keys) > 1 else 0
                size += prefix + _OFFSET_DIGITS + max(len(epoch), _EPOCH_ROOM) + len(name) + len(";//")
        return size

    def stamped(self, events: bytes) -> Iterator[bytes]:
        """Complete events with their final ids, in pieces, because ids may be longer than their events."""
        text = b"\n" + events  # so that every line follows a line feed
        at = 1
        piece: list[bytes] = []
        size = 0
        for lines in _LINES.finditer(text):
            for line in lines[0][1:].split(b"\n"):
                self._move(line)
            piece += (text[at : lines.start() + 1], b"id: ", self._id())
            size += sum(map(len, piece[-3:]))
            at = lines.end()
            if size >= PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        piece.append(text[at:])
        yield b"".join(piece)

    def _move(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        assert found is not None, "codecs write id lines with id_line"
        key, offset, epoch, name = found[1] or b"", int(found[2]), found[3], found[4]
        place = (key, name)
        if place in self._delivered and self._positions[place][0] == epoch and self._positions[place][1] > offset:
            return  # the gap is reported where history begins, but later messages may have been delivered already
        self._delivered.add(place)
        self._positions[place] = (epoch, offset)
        if key not in self._keys.setdefault(name, []):
            self._keys[name].append(key)
        self._print(name)

    def _print(self, name: bytes) -> None:
        """One entry for all subscriptions of a stream, if they are at the same offset."""
        found = [(key, *self._positions[key, name]) for key in self._keys[name] if (key, name) in self._positions]
        self._uneven.discard(name)
        if len(found) == len(self._keys[name]) and len({(epoch, offset) for _, epoch, offset in found}) == 1:
            self._entries[name] = b";%d/%b/%b" % (found[0][2], found[0][1], name)
        elif found:
            self._entries[name] = b"".join(b";%b:%d/%b/%b" % (key, offset, epoch, name) for key, epoch, offset in found)
            self._uneven.add(name)

    def _id(self) -> bytes:
        text = b"".join(self._entries.values())
        return text if len(self._entries) > 1 or self._uneven else text[1:]
