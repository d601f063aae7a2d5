"""The conformance suite for row readers passes a correct one and detects each faulty one."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import SERVER_TYPES, Publication
from ropewalk.ports import RowReader
from ropewalk.testing.rows import RowReaderConformance
from tests.unit.testing.suites import failed_tests


class JsonRows:
    """A correct reader: a body is a JSON array of publications."""

    def __init__(self, body: bytes) -> None:
        try:
            self._rows = msgspec.json.decode(body, type=list[Publication])
        except ValueError as error:
            raise MalformedPublication(str(error)) from None

    def __len__(self) -> int:
        return len(self._rows)

    def publications(self, start: int, count: int) -> list[Publication]:
        return [self._checked(row, start + place) for place, row in enumerate(self._rows[start : start + count])]

    def _checked(self, row: Publication, index: int) -> Publication:
        try:
            row.payload.decode()
        except ValueError:
            raise MalformedPublication("no text", index) from None
        if not row.stream or len(row.uid) > 256 or row.broadcast_type in SERVER_TYPES:
            raise MalformedPublication("no stream, too long a uid, or a type of the server's own", index)
        return row


class JsonSuite(RowReaderConformance):
    kind: type[JsonRows] = JsonRows

    def make(self) -> RowReader:
        return self.kind

    def body(self, rows: Sequence[Publication]) -> bytes:
        return msgspec.json.encode(rows)


class RaisesLibraryErrors(JsonRows):
    def __init__(self, body: bytes) -> None:
        self._rows = msgspec.json.decode(body, type=list[Publication])


class CountsFromTheSlice(JsonRows):
    def publications(self, start: int, count: int) -> list[Publication]:
        return [self._checked(row, place) for place, row in enumerate(self._rows[start : start + count])]


class AcceptsEverything(JsonRows):
    def _checked(self, row: Publication, index: int) -> Publication:
        return row


class ReadsOnlyOnce(JsonRows):
    def publications(self, start: int, count: int) -> list[Publication]:
        found, self._rows = self._rows[:count], self._rows[count:]
        return found


class LosesTheSequence(JsonRows):
    def _checked(self, row: Publication, index: int) -> Publication:
        return msgspec.structs.replace(super()._checked(row, index), sequence=0)


FAULTY = {
    RaisesLibraryErrors: "test_malformed_body_is_rejected",
    CountsFromTheSlice: "test_invalid_row_is_reported_with_its_index",
    AcceptsEverything: "test_invalid_row_is_reported_with_its_index",
    ReadsOnlyOnce: "test_rows_can_be_read_in_parts_and_again",
    LosesTheSequence: "test_rows_are_read_in_order",
}


async def test_correct_reader_passes_all_tests(tmp_path: Path) -> None:
    assert await failed_tests(JsonSuite, tmp_path) == set()


@pytest.mark.parametrize(("kind", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_reader_fails_its_test(kind: type[JsonRows], test: str, tmp_path: Path) -> None:
    class FaultySuite(JsonSuite):
        pass

    FaultySuite.kind = kind
    assert await failed_tests(FaultySuite, tmp_path, test) == {test}
