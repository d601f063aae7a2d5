"""Structured logs, as text and as JSON."""

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest

from ropewalk.app import logs


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("ropewalk")
    wire = logging.getLogger("ropewalk.wire")
    handlers, levels = root.handlers[:], (root.level, ours.level, wire.level)
    # basicConfig(force=True) closes the handlers it removes, and pytest's own must live on.
    root.handlers = []
    yield
    logs.name_process("")
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    wire.setLevel(levels[2])


def logged(format: str, message: str, level: str = "info", **fields: object) -> str:
    out = StringIO()
    logs.configure(level, format, out)
    logging.getLogger("ropewalk.engine").info(message, extra=fields)
    return out.getvalue()


def test_text_line_has_time_level_logger_message_and_fields() -> None:
    line = logged("text", "session restored", sid="abc", streams=3, why="it came back")

    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info ropewalk.engine: session restored sid=abc streams=3 why="it came back"\n'


def test_json_line_is_one_object() -> None:
    line = json.loads(logged("json", "session\nrestored", sid="abc", streams=3))

    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "ropewalk.engine", "message": "session\nrestored", "sid": "abc", "streams": 3}


def test_line_names_its_process() -> None:
    logs.name_process("worker 1")
    assert logged("text", "session restored", sid="abc").endswith('session restored process="worker 1" sid=abc\n')
    assert json.loads(logged("json", "session restored"))["process"] == "worker 1"
    logs.name_process("")
    assert "process" not in logged("text", "session restored")


def test_line_breaks_in_values_do_not_start_a_second_record() -> None:
    text = logged("text", "refused\n2026-01-01T00:00:00Z info", reason="a\nb")

    assert text.count("\n") == 1


def test_value_of_a_secret_field_is_hidden(subtests: pytest.Subtests) -> None:
    for field in ["secret", "jwt_secret", "broadcast_key", "token", "Authorization"]:
        for format in ["text", "json"]:
            with subtests.test(field=field, format=format):
                line = logged(format, "started", **{field: "hush-hush"})

                assert "hush-hush" not in line
                assert "(set)" in line


def test_records_below_the_level_are_dropped() -> None:
    assert logged("text", "hello", level="warn") == ""


def test_other_libraries_log_from_warning_level() -> None:
    out = StringIO()
    logs.configure("debug", "text", out)

    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("trouble")

    assert "chatter" not in out.getvalue()
    assert "warn aiohttp: trouble" in out.getvalue()


def test_payloads_are_logged_only_if_enabled(subtests: pytest.Subtests) -> None:
    for payloads in [True, False]:
        with subtests.test(payloads=payloads):
            out = StringIO()
            logs.configure("debug", "text", out, payloads=payloads)

            logging.getLogger("ropewalk.wire").debug("in", extra={"data": "payload"})
            logging.getLogger("ropewalk.session").debug("refused")

            assert ("payload" in out.getvalue()) is payloads
            assert "refused" in out.getvalue()


def test_payloads_are_logged_at_any_level() -> None:
    out = StringIO()
    logs.configure("error", "text", out, payloads=True)

    logging.getLogger("ropewalk.wire").debug("in")

    assert "debug ropewalk.wire: in" in out.getvalue()


def test_exception_is_part_of_its_record() -> None:
    out = StringIO()
    logs.configure("info", "json", out)

    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("ropewalk.engine").exception("failed")

    assert "RuntimeError: broken" in json.loads(out.getvalue())["exception"]
