"""Frames in any layout that FlatBuffers permits: a reader that checks every offset it follows, and a writer.

A frame that passes the reader passes the verifier of FlatBuffers for C++, which is less strict. The depth is fixed at two,
there is no recursion, and a peer's number is checked against the frame's end before memory is allocated for it.
"""

from enum import IntEnum
from struct import Struct, calcsize, pack, unpack_from
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky.frames import Body

IDENTIFIER = b"BRK1"
MIN_FRAME_BYTES = 12  # the size, the root's offset, the identifier

_BODIES: tuple[type, ...] = get_args(Body)
_FRAME_VTABLE = pack("<4H", 8, 12, 8, 4)  # its size, the table's, and the offsets of body_type and body
_FRAME_AT, _BODY_VTABLE_AT = 12, 20


def malformed(reason: str) -> MalformedFrame:
    return MalformedFrame(reason, 1002)


class _Field(NamedTuple):
    """`code`: the `struct` format of the value, or of a vector's elements."""

    name: str
    code: str
    vector: bool
    text: bool
    kind: type
    default: Any

    @property
    def width(self) -> int:
        return 4 if self.vector else calcsize(self.code)


def _fields(record: type) -> tuple[_Field, ...]:
    hints = get_type_hints(record, include_extras=True)
    defaults = record()
    return tuple(_field(name, hint, getattr(defaults, name)) for name, hint in hints.items())


def _field(name: str, hint: Any, default: Any) -> _Field:
    if get_origin(hint) is Annotated:
        plain, code = get_args(hint)
        return _Field(name, code, get_origin(plain) is tuple, False, tuple if get_origin(plain) else int, default)
    if hint in (bytes, str):
        return _Field(name, "B", True, hint is str, hint, default)
    return _Field(name, "B", False, False, hint, default)  # a bool or an enum


class _Layout:
    """Where the writer puts the fields of a table: the widest first, so that all are aligned without padding.

    Attributes:
        head: everything from the root's offset up to the first field.
        empty: offset of the empty vector that all absent ones share.
    """

    def __init__(self, kind: int, fields: tuple[_Field, ...]) -> None:
        placed = sorted(fields, key=lambda field: -field.width)
        vtable_size = 4 + 2 * len(fields)
        frame_at = _BODY_VTABLE_AT + vtable_size
        frame_at += -frame_at % 8
        body_at = frame_at + 12
        at = body_at + 4
        places: dict[str, int] = {}
        for field in placed:
            places[field.name] = at
            at += field.width
        pad = -at % 4
        self.empty = at + pad
        self.tail = self.empty + 4
        self.inline = Struct("<" + "".join("I" if field.vector else field.code for field in placed) + f"{pad}xI")
        self.placed = tuple((field, places[field.name]) for field in placed)
        vtable = pack(
            f"<{2 + len(fields)}H", vtable_size, self.empty - body_at, *(places[field.name] - body_at for field in fields)
        )
        self.head = b"".join(
            (
                pack("<I", frame_at - 4),
                IDENTIFIER,
                _FRAME_VTABLE,
                vtable.ljust(frame_at - _BODY_VTABLE_AT, b"\0"),
                pack("<iIB3x", frame_at - _FRAME_AT, 8, kind),
                pack("<i", body_at - _BODY_VTABLE_AT),
            )
        )


_FIELDS = {record: _fields(record) for record in _BODIES}
_LAYOUTS = {record: _Layout(kind, _FIELDS[record]) for kind, record in enumerate(_BODIES, 1)}

# --- writing ---------------------------------------------------------------------------------------------------------


def frame_prefix(record: type) -> bytes:
    """The constant bytes of all encoded frames of this kind, from byte 4 up to the first field."""
    return _LAYOUTS[record].head


def encode(record: Body) -> bytes:
    """A complete frame, with its size field. Raises `struct.error` for a number out of range."""
    layout = _LAYOUTS[type(record)]
    inline: list[int] = []
    tail: list[bytes] = []
    end = layout.tail
    for field, place in layout.placed:
        value = getattr(record, field.name)
        if not field.vector:
            inline.append(value)
        elif not value and not field.text:
            inline.append(layout.empty - place)
        else:
            wide = 8 if field.code == "Q" else 4
            gap = -(end + 4) % wide
            inline.append(end + gap - place)
            piece = bytes(gap) + _vector(field, value)
            tail.append(piece)
            end += len(piece)
    tail.append(bytes(-end % 8))
    end += -end % 8
    return b"".join((pack("<I", end - 4), layout.head, layout.inline.pack(*inline, 0), *tail))


def _vector(field: _Field, value: Any) -> bytes:
    """The length, the elements, and zeros up to a multiple of four: at least one for text."""
    if field.text:
        value = value.encode()
        elements = value + b"\0"
    else:
        elements = value if field.kind is bytes else pack(f"<{len(value)}{field.code}", *value)
    vector: bytes = pack("<I", len(value)) + elements + bytes(-len(elements) % 4)
    return vector


# --- reading ---------------------------------------------------------------------------------------------------------


def read(frame: bytes) -> Body:
    """Decode and check a complete frame of any layout. Raises MalformedFrame."""
    end = len(frame)
    if end < MIN_FRAME_BYTES or int.from_bytes(frame[:4], "little") != end - 4:
        raise malformed("the frame does not have the size it states")
    if frame[8:12] != IDENTIFIER:
        raise malformed("the frame is not of this protocol")
    root = _Table(frame, _target(frame, 4))
    kind = root.scalar(0, "B", 0)
    at = root.place(1, 4)
    if not at or not 1 <= kind <= len(_BODIES):
        raise malformed("the frame has no known body")
    body = _Table(frame, _target(frame, at))
    record = _BODIES[kind - 1]
    made: Body = record(*(_value(body, number, field) for number, field in enumerate(_FIELDS[record])))
    return made


def _target(frame: bytes, at: int) -> int:
    """The target of an offset. Offsets only lead forward."""
    offset: int = unpack_from("<I", frame, at)[0]
    if not offset:
        raise malformed("an offset is zero")
    return at + offset


def _value(table: "_Table", number: int, field: _Field) -> Any:
    if not field.vector:
        value = table.scalar(number, field.code, field.default)
        return value if field.kind is int else _named(field.kind, value)
    data = table.vector(number, calcsize(field.code), field.text)
    if field.text:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise malformed("a text is not UTF-8") from None
    return data if field.kind is bytes else numbers(data, field.code)


def _named(kind: type, value: int) -> Any:
    if not issubclass(kind, IntEnum):
        return bool(value)
    if value >= len(kind):  # their values have no holes
        raise malformed(f"unknown {kind.__name__.lower()}: {value}")
    return kind(value)


class _Table:
    """A table. It and its vtable are inside the frame."""

    def __init__(self, frame: bytes, at: int) -> None:
        end = len(frame)
        if at % 4 or at > end - 4:
            raise malformed("a table is outside the frame, or not aligned")
        vtable = at - unpack_from("<i", frame, at)[0]
        if vtable < MIN_FRAME_BYTES or vtable % 2 or vtable > end - 4:
            raise malformed("a vtable is outside the frame, or not aligned")
        size, self._size = unpack_from("<HH", frame, vtable)
        if size < 4 or size % 2 or vtable + size > end or self._size < 4 or at + self._size > end:
            raise malformed("a table or its vtable is longer than the frame")
        self._places: tuple[int, ...] = unpack_from(f"<{size // 2 - 2}H", frame, vtable + 4)
        self._frame = frame
        self._at = at

    def place(self, number: int, width: int) -> int:
        """The offset of a field; 0 if it is absent."""
        within = self._places[number] if number < len(self._places) else 0
        if not within:
            return 0
        at = self._at + within
        if within < 4 or within + width > self._size or at % width:
            raise malformed("a field is outside its table, or not aligned")
        return at

    def scalar(self, number: int, code: str, default: int) -> int:
        at = self.place(number, calcsize(code))
        return unpack_from("<" + code, self._frame, at)[0] if at else default

    def vector(self, number: int, width: int, text: bool) -> bytes:
        at = self.place(number, 4)
        if not at:
            return b""
        return checked_vector(self._frame, _target(self._frame, at) + 4, width, text)


def checked_vector(frame: bytes, start: int, width: int, text: bool = False) -> bytes:
    """The elements of a vector, which begin at `start`, after their number."""
    end = len(frame)
    if start < MIN_FRAME_BYTES + 4 or start > end or start % 4:
        raise malformed("a vector is outside the frame, or not aligned")
    stop = start + int.from_bytes(frame[start - 4 : start], "little") * width
    if start % width and stop > start:
        raise malformed("the elements of a vector are not aligned")
    if stop + text > end:
        raise malformed("a vector is longer than the frame")
    if text and frame[stop]:
        raise malformed("a text does not end with a zero")
    return frame[start:stop]


def numbers(data: bytes, code: str) -> tuple[int, ...]:
    return unpack_from(f"<{len(data) // calcsize(code)}{code}", data) if data else ()
