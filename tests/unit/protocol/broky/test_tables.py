"""Tables of the FlatBuffers layout."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky import splitter
from ropewalk.protocol.broky.frames import History, Ping
from ropewalk.protocol.broky.tables import IDENTIFIER, encode, read
from tests import broky_generated

SCHEMA = Path(splitter.__file__).with_name("broky.fbs")


def test_alignment_counts_from_the_size_prefix() -> None:
    """A buffer finished without its size is misaligned by 4 bytes once the size is prepended."""
    made: Any = broky_generated

    def built() -> tuple[Any, int]:
        builder: Any = flatbuffers.Builder(0)
        key = builder.CreateByteVector(b"key")
        made.HistoryStart(builder)
        made.HistoryAddKey(builder, key)
        made.HistoryAddOffset(builder, 7)
        body = made.HistoryEnd(builder)
        made.FrameStart(builder)
        made.FrameAddBodyType(builder, made.Body.History)
        made.FrameAddBody(builder, body)
        return builder, made.FrameEnd(builder)

    builder, root = built()
    builder.FinishSizePrefixed(root, IDENTIFIER)
    assert read(bytes(builder.Output())) == History(key=b"key", offset=7)

    builder, root = built()
    builder.Finish(root, IDENTIFIER)
    unsized = bytes(builder.Output())
    with pytest.raises(MalformedFrame, match="not aligned"):
        read(len(unsized).to_bytes(4, "little") + unsized)


@pytest.mark.needs_flatc
@pytest.mark.tier("standard")  # runs the compiler
def test_generated_code_is_up_to_date_with_the_schema(tmp_path: Path) -> None:
    flatc = shutil.which("flatc")
    assert flatc is not None
    subprocess.run([flatc, "--python", "--gen-onefile", "-o", tmp_path, SCHEMA], check=True)
    assert (tmp_path / "broky_generated.py").read_text() == Path(broky_generated.__file__).read_text()


def test_fields_of_a_later_version_are_skipped() -> None:
    ping = encode(Ping(5))
    vtable = 20  # as in the layout of a run
    assert read(ping) == Ping(5)
    longer = bytearray(ping)
    longer[vtable : vtable + 2] = (8).to_bytes(2, "little")  # one more entry, which was padding
    longer[vtable + 6 : vtable + 8] = (4).to_bytes(2, "little")
    assert read(bytes(longer)) == Ping(5)
