"""KSUIDs as bytes and as text."""

from random import Random

import pytest

from ropewalk.model.messages import LAST_KSUID
from ropewalk.protocol.broky import ksuid


def test_ksuid_text_equals_the_published_example() -> None:
    raw = bytes.fromhex("0669f7efb5a1cd34b5f99d1154fb6853345c9735")  # the example of the KSUID authors
    assert ksuid.ksuid_text(raw) == "0ujtsYcgvSTl8PAuAdqWYSMnLOv"
    assert ksuid.parse_ksuid("0ujtsYcgvSTl8PAuAdqWYSMnLOv") == raw


def test_ksuids_sort_by_time_as_bytes_and_as_text() -> None:
    random = Random(1)
    made = [ksuid.new_ksuid(1_700_000_000 + second, random.randbytes) for second in range(50)]
    assert made == sorted(made)
    assert [ksuid.ksuid_text(each) for each in made] == sorted(map(ksuid.ksuid_text, made))


def test_largest_ksuid_has_all_bits_set() -> None:
    assert ksuid.parse_ksuid(LAST_KSUID) == b"\xff" * ksuid.KSUID_BYTES
    assert ksuid.ksuid_text(b"\xff" * ksuid.KSUID_BYTES) == LAST_KSUID


def test_invalid_ksuid_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", "0" * 26, "0" * 28, "z" * 27, LAST_KSUID[:-1] + "W", "0" * 26 + "-", "0" * 26 + "é"]
    for text in rows:
        with subtests.test(text=text), pytest.raises(ValueError, match="KSUID"):
            ksuid.parse_ksuid(text)
