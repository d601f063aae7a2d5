"""Conformance of `ports.RowReader`: a body is read as its publications, or rejected with the index of the invalid row."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import Publication
from ropewalk.ports import RowReader

ROWS = (
    Publication("a", b'{"n":1.10}'),
    Publication("ключ", b"[1,2]", uid="u"),
    Publication("a", b'"text"', exclude_socket="sid", broadcast_type="t"),
    Publication("b", b"{}", producer="app", sequence=7),
    Publication("b", b"{}", producer="app", sequence=1 << 40),
)
INVALID_ROWS = (
    Publication("", b"1"),
    Publication("a", b"\xff"),
    Publication("a", b"1", uid="u" * 1000),
    Publication("a", b"1", broadcast_type="disconnect"),
)
NOT_A_BODY = (b"", b"\0", b"\xff" * 100, b"null", b'{"stream":"a","data":"1"}')
FLIPS = 500


class RowReaderConformance:
    """Inherit it as `TestMyRows` and fill `make` and `body`."""

    def make(self) -> RowReader:
        raise NotImplementedError("return a reader of bodies")

    def body(self, rows: Sequence[Publication]) -> bytes:
        """These rows as a client writes them, right or wrong. What a publication does not have is left out or null."""
        raise NotImplementedError("write a body of these rows")

    def read(self, body: bytes) -> list[Publication]:
        rows = self.make()(body)
        return rows.publications(0, len(rows))

    def test_rows_are_read_in_order(self) -> None:
        assert self.read(self.body(ROWS)) == list(ROWS)

    def test_body_without_rows_is_valid(self) -> None:
        assert self.read(self.body(())) == []

    def test_rows_can_be_read_in_parts_and_again(self) -> None:
        rows = self.make()(self.body(ROWS))
        assert len(rows) == len(ROWS)
        for count in (1, 2, 3, 5, 100):
            for _ in range(2):
                parts = [rows.publications(start, count) for start in range(0, len(ROWS), count)]
                assert [row for part in parts for row in part] == list(ROWS), count

    def test_invalid_row_is_reported_with_its_index(self) -> None:
        for wrong in INVALID_ROWS:
            for place in (0, 2, len(ROWS)):
                body = self.body((*ROWS[:place], wrong, *ROWS[place:]))
                with pytest.raises(MalformedPublication) as refusal:
                    self.read(body)
                assert refusal.value.index == place, wrong
                rows = self.make()(body)
                assert rows.publications(0, place) == list(ROWS[:place]), wrong
                with pytest.raises(MalformedPublication) as refusal:
                    rows.publications(place, 1)
                assert refusal.value.index == place, wrong

    def test_malformed_body_is_rejected(self) -> None:
        for body in NOT_A_BODY:
            with pytest.raises(MalformedPublication):
                pytest.fail(f"{body[:100]!r} was read as {self.read(body)}")

    def test_damaged_body_is_read_or_rejected(self) -> None:
        whole, chance, refused = self.body(ROWS), random.Random(5), 0
        for _ in range(FLIPS):
            body = bytearray(whole)
            body[chance.randrange(len(body))] = chance.randrange(256)
            for changed in (bytes(body), whole[: chance.randrange(len(whole))]):
                try:
                    self.read(changed)
                except MalformedPublication:
                    refused += 1
        assert refused > 0

    def test_threads_can_read_concurrently(self) -> None:
        bodies = [self.body(ROWS * times) for times in range(1, 20)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(self.read, bodies))
        assert found == [list(ROWS * times) for times in range(1, 20)]
