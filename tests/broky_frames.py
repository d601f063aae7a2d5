"""Frames for the tests of the Broky codec: random records, the same built by generated code, and damaged frames."""

import random
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import flatbuffers
from hypothesis import strategies as st

from ropewalk.protocol.broky.frames import Body, Format, Run
from ropewalk.protocol.broky.runs import build_run, encode_run
from ropewalk.protocol.broky.tables import encode
from tests import broky_generated as generated

BODIES: tuple[type, ...] = get_args(Body)

_BITS = {"H": 16, "I": 32, "Q": 64}


def records(kind: type) -> st.SearchStrategy[Any]:
    """Random records of this kind. Some fields have their defaults."""
    if kind is Run:
        return runs()
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: _values(hint) for name, hint in hints.items()})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hasattr(hint, "__metadata__"):
        numbers = st.integers(0, 2 ** _BITS[hint.__metadata__[0]] - 1)
        return numbers if hint.__origin__ is int else st.lists(numbers, max_size=5).map(tuple)
    if hint is bytes:
        return st.binary(max_size=20)
    if hint is str:
        return st.text(max_size=20)
    return st.booleans() if hint is bool else st.sampled_from(hint)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    payloads = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
    count = len(payloads)
    times = draw(st.just(()) | st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count).map(tuple))
    uid = draw(st.just(b"") | st.binary(min_size=20 * count, max_size=20 * count))
    short = st.binary(max_size=20)
    pushed = build_run(
        draw(short), payloads, draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from(Format)), draw(short), uid, times
    )
    offset, ts_broker = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**64 - 1))
    return Run(
        pushed.ref,
        count,
        offset,
        ts_broker,
        pushed.key,
        pushed.key_partition,
        pushed.sizes,
        times,
        uid,
        draw(short),
        pushed.payload,
        pushed.format,
    )


# --- by generated code ------------------------------------------------------------------------------------------------


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def built(record: Any) -> bytes:
    """The frame as generated code builds it: another layout, with defaults left out."""
    builder = flatbuffers.Builder(64)
    kind = type(record).__name__
    values = {}
    for name in type(record).__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, str):
            value = builder.CreateString(value)
        elif isinstance(value, bytes):
            value = builder.CreateByteVector(value) if value else None
        elif isinstance(value, tuple):
            value = _vector_of(builder, kind, name, value) if value else None
        values[name] = value
    getattr(generated, f"{kind}Start")(builder)
    for name, value in values.items():
        if value is not None:
            getattr(generated, f"{kind}Add{_camel(name)}")(builder, value)
    body = getattr(generated, f"{kind}End")(builder)
    generated.FrameStart(builder)
    generated.FrameAddBodyType(builder, getattr(generated.Body, kind))
    generated.FrameAddBody(builder, body)
    builder.FinishSizePrefixed(generated.FrameEnd(builder), b"BRK1")
    return bytes(builder.Output())


def _vector_of(builder: Any, kind: str, name: str, values: tuple[int, ...]) -> Any:
    getattr(generated, f"{kind}Start{_camel(name)}Vector")(builder, len(values))
    prepend = builder.PrependUint64 if name in ("ts_producer", "offsets") else builder.PrependUint32
    for value in reversed(values):
        prepend(value)
    return builder.EndVector()


def seen(frame: bytes, kind: type) -> Any:
    """The record as generated code reads it from a frame."""
    root = generated.Frame.GetRootAs(frame, 4)
    assert root.BodyType() == getattr(generated.Body, kind.__name__)
    table = getattr(generated, kind.__name__)()
    body = root.Body()
    table.Init(body.Bytes, body.Pos)
    return kind(**{name: _shown(table, name, hint) for name, hint in get_type_hints(kind).items()})


def _shown(table: Any, name: str, hint: Any) -> Any:
    camel = _camel(name)
    if hint is str:
        return getattr(table, camel)().decode()
    if hint is bytes or hint == tuple[int, ...]:
        elements = [getattr(table, camel)(place) for place in range(getattr(table, f"{camel}Length")())]
        return bytes(elements) if hint is bytes else tuple(elements)
    return hint(getattr(table, camel)())


# --- damaged ----------------------------------------------------------------------------------------------------------


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """Frames of all kinds and both layouts, with a few bytes changed, cut, grown, or filled with numbers that hurt."""
    chance = random.Random(seed)
    sound = [encode(kind()) for kind in BODIES]
    sound += [encode(_filled(kind, chance)) for kind in BODIES if kind is not Run]
    for size in (1, 2, 10):
        payloads = [chance.randbytes(chance.randrange(80)) for _ in range(size)]
        run = build_run(b"key", payloads, 7, Format.BYTES, b"part", chance.randbytes(20 * size), tuple(range(size)))
        sound += [encode_run(run)] * 6 + [encode_run(build_run(b"k", payloads))] * 6 + [encode(run), built(run)]
    for _ in range(count):
        yield _damage(bytearray(chance.choice(sound)), chance)


def _filled(kind: Any, chance: random.Random) -> Any:
    hints = get_type_hints(kind)
    examples: dict[Any, Any] = {int: 5, bytes: b"some bytes", str: "some text", bool: True}
    return kind(**{name: examples.get(hint, (1, 2, 3) if "tuple" in str(hint) else 1) for name, hint in hints.items()})


def _damage(frame: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(frame))
        match chance.randrange(7):
            case 0:
                frame[at] = chance.randrange(256)
            case 1:
                frame[at] ^= 1 << chance.randrange(8)
            case 2:
                at -= at % 4
                frame[at : at + 4] = chance.choice((0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(frame))).to_bytes(
                    4, "little"
                )
            case 3:
                frame[at : at + 2] = chance.choice((0, 1, 4, 6, 0x7FFF, 0xFFFF)).to_bytes(2, "little")
            case 4 if len(frame) > 16:
                del frame[chance.randrange(12, len(frame)) :]
            case 5:
                frame[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                other = chance.randrange(len(frame))
                frame[at : at + 4], frame[other : other + 4] = frame[other : other + 4], frame[at : at + 4]
    if chance.random() < 0.9 and len(frame) >= 4:  # most of them get past the first check
        frame[:4] = (len(frame) - 4).to_bytes(4, "little")
    return bytes(frame)
