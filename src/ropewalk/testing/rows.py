"""What every `ports.RowReader` must do: a body becomes the publications it holds, or is refused with the row that is wrong."""

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

    def test_a_body_holds_its_rows_in_order(self) -> None:
        assert self.read(self.body(ROWS)) == list(ROWS)

    def test_a_body_without_rows_is_fine(self) -> None:
        assert self.read(self.body(())) == []

    @pytest.mark.parametrize("count", [1, 2, 3, 5, 100])
    def test_rows_can_be_read_in_parts_and_again(self, count: int) -> None:
        rows = self.make()(self.body(ROWS))
        assert len(rows) == len(ROWS)
        for _ in range(2):
            parts = [rows.publications(start, count) for start in range(0, len(ROWS), count)]
            assert [row for part in parts for row in part] == list(ROWS)

    @pytest.mark.parametrize(
        "wrong",
        [
            Publication("", b"1"),
            Publication("a", b"\xff"),
            Publication("a", b"1", uid="u" * 1000),
            Publication("a", b"1", broadcast_type="disconnect"),
        ],
    )
    @pytest.mark.parametrize("place", [0, 2, len(ROWS)])
    def test_a_row_that_is_no_publication_is_named_by_its_place_in_the_body(self, wrong: Publication, place: int) -> None:
        body = self.body((*ROWS[:place], wrong, *ROWS[place:]))
        with pytest.raises(MalformedPublication) as refusal:
            self.read(body)
        assert refusal.value.index == place
        rows = self.make()(body)
        assert rows.publications(0, place) == list(ROWS[:place])
        with pytest.raises(MalformedPublication) as refusal:
            rows.publications(place, 1)
        assert refusal.value.index == place

    @pytest.mark.parametrize("body", NOT_A_BODY)
    def test_what_is_no_body_is_refused(self, body: bytes) -> None:
        with pytest.raises(MalformedPublication):
            self.read(body)

    def test_a_body_that_was_cut_or_changed_is_read_or_refused_and_nothing_else(self) -> None:
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

    def test_threads_read_beside_each_other(self) -> None:
        bodies = [self.body(ROWS * times) for times in range(1, 20)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(self.read, bodies))
        assert found == [list(ROWS * times) for times in range(1, 20)]
