"""The suite for readers of rows lets a right reader pass, and finds out each wrong one."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import SERVER_TYPES, Publication
from ropewalk.ports import RowReader
from ropewalk.testing.rows import RowReaderConformance
from tests.unit.testing.suites import failing


class JsonRows:
    """A reader that is right: a body is a JSON array of publications."""

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


class RaisesWhatItsLibraryRaises(JsonRows):
    def __init__(self, body: bytes) -> None:
        self._rows = msgspec.json.decode(body, type=list[Publication])


class CountsFromThePart(JsonRows):
    def publications(self, start: int, count: int) -> list[Publication]:
        return [self._checked(row, place) for place, row in enumerate(self._rows[start : start + count])]


class TakesEverything(JsonRows):
    def _checked(self, row: Publication, index: int) -> Publication:
        return row


class CanBeReadOnce(JsonRows):
    def publications(self, start: int, count: int) -> list[Publication]:
        found, self._rows = self._rows[:count], self._rows[count:]
        return found


class LosesTheSequence(JsonRows):
    def _checked(self, row: Publication, index: int) -> Publication:
        return msgspec.structs.replace(super()._checked(row, index), sequence=0)


WRONG = {
    RaisesWhatItsLibraryRaises: "test_malformed_body_is_rejected",
    CountsFromThePart: "test_invalid_row_is_reported_with_its_index",
    TakesEverything: "test_invalid_row_is_reported_with_its_index",
    CanBeReadOnce: "test_rows_can_be_read_in_parts_and_again",
    LosesTheSequence: "test_rows_are_read_in_order",
}


async def test_a_right_reader_fails_nothing(tmp_path: Path) -> None:
    assert await failing(JsonSuite, tmp_path) == set()


@pytest.mark.parametrize(("kind", "test"), WRONG.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_a_wrong_reader_is_found_out(kind: type[JsonRows], test: str, tmp_path: Path) -> None:
    class Wrong(JsonSuite):
        pass

    Wrong.kind = kind
    assert await failing(Wrong, tmp_path, test) == {test}
