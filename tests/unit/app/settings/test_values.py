"""How the values of settings are written, read and shown again."""

import pytest

from ropewalk.app.settings import values
from ropewalk.app.settings.values import Value, ValueKind


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
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
    ],
)
def test_a_value_is_read_from_text_and_from_toml(kind: ValueKind, raw: object, value: Value) -> None:
    read = kind.read(raw)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
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
    ],
)
def test_what_is_not_a_value_is_refused_with_a_reason(kind: ValueKind, raw: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.read(raw)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (values.DURATION, 300.0, "300s"),
        (values.DURATION, 0.5, "500ms"),
        (values.DURATION, 0.0, "0s"),
        (values.DURATION, 0.0001, "0.0001s"),
        (values.SIZE, 1_048_576, "1MiB"),
        (values.SIZE, 1000, "1000"),
        (values.SIZE, 0, "0"),
        (values.SWITCH, True, "true"),
        (values.WORDS, ("a", "b"), "a,b"),
    ],
)
def test_a_value_is_shown_as_it_may_be_written(kind: ValueKind, value: Value, shown: str) -> None:
    assert kind.show(value) == shown
    assert kind.read(shown) == value


def test_a_refused_text_is_not_repeated_for_it_may_be_a_secret() -> None:
    with pytest.raises(ValueError, match="text in quotes") as refusal:
        values.TEXT.read(12345)

    assert "12345" not in str(refusal.value)
