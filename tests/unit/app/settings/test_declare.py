"""Reading and showing values of settings."""

import pytest

from ropewalk.app.settings import declare
from ropewalk.app.settings.declare import Value, ValueKind


def test_values_are_read_from_text_and_toml(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, object, Value]] = [
        (declare.DURATION, "300s", 300.0),
        (declare.DURATION, "5m", 300.0),
        (declare.DURATION, "1h", 3600.0),
        (declare.DURATION, "500ms", 0.5),
        (declare.DURATION, "1.5s", 1.5),
        (declare.DURATION, "15", 15.0),
        (declare.DURATION, 15, 15.0),
        (declare.DURATION, 0.25, 0.25),
        (declare.SIZE, "1MiB", 1_048_576),
        (declare.SIZE, "64KB", 64_000),
        (declare.SIZE, "64 kib", 65_536),
        (declare.SIZE, "1.5KiB", 1536),
        (declare.SIZE, "2GiB", 2_147_483_648),
        (declare.SIZE, 512, 512),
        (declare.SWITCH, "true", True),
        (declare.SWITCH, "ON", True),
        (declare.SWITCH, "0", False),
        (declare.SWITCH, False, False),
        (declare.COUNT, "100", 100),
        (declare.COUNT, 0, 0),
        (declare.PORT, "65535", 65535),
        (declare.WORKERS, "64", 64),
        (declare.WORKERS, 2, 2),
        (declare.WORKERS, "auto", min(declare.usable_cores(), 64)),
        (declare.WORDS, "/cable, /ws,", ("/cable", "/ws")),
        (declare.WORDS, "", ()),
        (declare.WORDS, ["a", "b"], ("a", "b")),
        (declare.TEXT, "127.0.0.1", "127.0.0.1"),
        (declare.read_choice("text", "json"), "json", "json"),
        (declare.read_choices("http"), "http", ("http",)),
    ]
    for kind, raw, value in cases:
        with subtests.test(kind=kind, raw=raw):
            read = kind.read(raw)

            assert read == value
            assert type(read) is type(value)


def test_invalid_values_are_rejected_with_a_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, object, str]] = [
        (declare.DURATION, "5 minutes", "duration such as"),
        (declare.DURATION, "-5s", "duration such as"),
        (declare.DURATION, "", "duration such as"),
        (declare.DURATION, True, "duration such as"),
        (declare.DURATION, "nan", "duration such as"),
        (declare.DURATION, "9" * 400, "duration such as"),
        (declare.SIZE, "99999999GiB", "size such as"),
        (declare.COUNT, "9" * 17, "whole number"),
        (declare.COUNT, 2**60, "whole number"),
        (declare.TEXT, "\udcff", "UTF-8"),
        (declare.SIZE, "1 parsec", "size such as"),
        (declare.SIZE, "1.5", "whole number of bytes"),
        (declare.SWITCH, "maybe", "true or false"),
        (declare.SWITCH, 1, "true or false"),
        (declare.COUNT, "-1", "whole number"),
        (declare.COUNT, -1, "whole number"),
        (declare.COUNT, True, "whole number"),
        (declare.WORKERS, "0", "a number from 1 to 64, or auto"),
        (declare.WORKERS, "65", "a number from 1 to 64, or auto"),
        (declare.WORKERS, "many", "a number from 1 to 64, or auto"),
        (declare.WORKERS, True, "a number from 1 to 64, or auto"),
        (declare.COUNT, "1e3", "whole number"),
        (declare.COUNT, "٣", "whole number"),
        (declare.PORT, "65536", "0 to 65535"),
        (declare.WORDS, [1], "list of texts"),
        (declare.TEXT, 5, "text in quotes"),
        (declare.read_choice("text", "json"), "xml", "text or json"),
        (declare.read_choices("http"), "http,redis", "not 'redis'"),
    ]
    for kind, raw, reason in cases:
        with subtests.test(kind=kind, raw=raw), pytest.raises(ValueError, match=reason):
            kind.read(raw)


def test_shown_value_can_be_read_back(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, Value, str]] = [
        (declare.DURATION, 300.0, "300s"),
        (declare.DURATION, 0.5, "500ms"),
        (declare.DURATION, 0.0, "0s"),
        (declare.DURATION, 0.0001, "0.0001s"),
        (declare.SIZE, 1_048_576, "1MiB"),
        (declare.SIZE, 1000, "1000"),
        (declare.SIZE, 0, "0"),
        (declare.SWITCH, True, "true"),
        (declare.WORDS, ("a", "b"), "a,b"),
    ]
    for kind, value, shown in cases:
        with subtests.test(kind=kind, value=value):
            assert kind.show(value) == shown
            assert kind.read(shown) == value


def test_rejected_text_is_not_shown_because_it_may_be_a_secret() -> None:
    with pytest.raises(ValueError, match="text in quotes") as error:
        declare.TEXT.read(12345)

    assert "12345" not in str(error.value)
