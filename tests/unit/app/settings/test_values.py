"""Reading and showing values of settings."""

import pytest

from ropewalk.app.settings import values
from ropewalk.app.settings.values import Value, ValueKind


def test_values_are_read_from_text_and_toml(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, object, Value]] = [
        (values.DURATION, "300s", 300.0),
        (values.DURATION, "5m", 300.0),
        (values.DURATION, "1h", 3600.0),
        (values.DURATION, "500ms", 0.5),
        (values.DURATION, "1.5s", 1.5),
        (values.DURATION, "15", 15.0),
        (values.DURATION, 15, 15.0),
        (values.DURATION, 0.25, 0.25),
        (values.SIZE, "1MiB", 1_048_576),
        (values.SIZE, "64KB", 64_000),
        (values.SIZE, "64 kib", 65_536),
        (values.SIZE, "1.5KiB", 1536),
        (values.SIZE, "2GiB", 2_147_483_648),
        (values.SIZE, 512, 512),
        (values.SWITCH, "true", True),
        (values.SWITCH, "ON", True),
        (values.SWITCH, "0", False),
        (values.SWITCH, False, False),
        (values.COUNT, "100", 100),
        (values.COUNT, 0, 0),
        (values.PORT, "65535", 65535),
        (values.WORKERS, "64", 64),
        (values.WORKERS, 2, 2),
        (values.WORKERS, "auto", min(values.usable_cores(), 64)),
        (values.WORDS, "/cable, /ws,", ("/cable", "/ws")),
        (values.WORDS, "", ()),
        (values.WORDS, ["a", "b"], ("a", "b")),
        (values.TEXT, "127.0.0.1", "127.0.0.1"),
        (values.one_of("text", "json"), "json", "json"),
        (values.some_of("http"), "http", ("http",)),
    ]
    for kind, raw, value in cases:
        with subtests.test(kind=kind, raw=raw):
            read = kind.read(raw)

            assert read == value
            assert type(read) is type(value)


def test_invalid_values_are_rejected_with_a_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, object, str]] = [
        (values.DURATION, "5 minutes", "duration such as"),
        (values.DURATION, "-5s", "duration such as"),
        (values.DURATION, "", "duration such as"),
        (values.DURATION, True, "duration such as"),
        (values.DURATION, "nan", "duration such as"),
        (values.DURATION, "9" * 400, "duration such as"),
        (values.SIZE, "99999999GiB", "size such as"),
        (values.COUNT, "9" * 17, "whole number"),
        (values.COUNT, 2**60, "whole number"),
        (values.TEXT, "\udcff", "UTF-8"),
        (values.SIZE, "1 parsec", "size such as"),
        (values.SIZE, "1.5", "whole number of bytes"),
        (values.SWITCH, "maybe", "true or false"),
        (values.SWITCH, 1, "true or false"),
        (values.COUNT, "-1", "whole number"),
        (values.COUNT, -1, "whole number"),
        (values.COUNT, True, "whole number"),
        (values.WORKERS, "0", "a number from 1 to 64, or auto"),
        (values.WORKERS, "65", "a number from 1 to 64, or auto"),
        (values.WORKERS, "many", "a number from 1 to 64, or auto"),
        (values.WORKERS, True, "a number from 1 to 64, or auto"),
        (values.COUNT, "1e3", "whole number"),
        (values.COUNT, "٣", "whole number"),
        (values.PORT, "65536", "0 to 65535"),
        (values.WORDS, [1], "list of texts"),
        (values.TEXT, 5, "text in quotes"),
        (values.one_of("text", "json"), "xml", "text or json"),
        (values.some_of("http"), "http,redis", "not 'redis'"),
    ]
    for kind, raw, reason in cases:
        with subtests.test(kind=kind, raw=raw), pytest.raises(ValueError, match=reason):
            kind.read(raw)


def test_shown_value_can_be_read_back(subtests: pytest.Subtests) -> None:
    cases: list[tuple[ValueKind, Value, str]] = [
        (values.DURATION, 300.0, "300s"),
        (values.DURATION, 0.5, "500ms"),
        (values.DURATION, 0.0, "0s"),
        (values.DURATION, 0.0001, "0.0001s"),
        (values.SIZE, 1_048_576, "1MiB"),
        (values.SIZE, 1000, "1000"),
        (values.SIZE, 0, "0"),
        (values.SWITCH, True, "true"),
        (values.WORDS, ("a", "b"), "a,b"),
    ]
    for kind, value, shown in cases:
        with subtests.test(kind=kind, value=value):
            assert kind.show(value) == shown
            assert kind.read(shown) == value


def test_rejected_text_is_not_shown_because_it_may_be_a_secret() -> None:
    with pytest.raises(ValueError, match="text in quotes") as error:
        values.TEXT.read(12345)

    assert "12345" not in str(error.value)
