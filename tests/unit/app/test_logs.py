"""Structured logs, as text and as JSON."""

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest

from ropewalk.app import logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
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


def test_a_text_line_has_time_level_package_message_and_fields() -> None:
    line = logged("text", "session restored", sid="abc", streams=3, why="it came back")

    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info ropewalk.engine: session restored sid=abc streams=3 why="it came back"\n'


def test_a_json_line_is_one_object() -> None:
    line = json.loads(logged("json", "session\nrestored", sid="abc", streams=3))

    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", "logger": "ropewalk.engine", "message": "session\nrestored", "sid": "abc", "streams": 3}


def test_a_line_tells_the_process_it_is_from() -> None:
    logs.name_process("worker 1")
    assert logged("text", "session restored", sid="abc").endswith('session restored process="worker 1" sid=abc\n')
    assert json.loads(logged("json", "session restored"))["process"] == "worker 1"
    logs.name_process("")
    assert "process" not in logged("text", "session restored")


def test_a_line_break_from_outside_does_not_look_like_a_second_record() -> None:
    text = logged("text", "refused\n2026-01-01T00:00:00Z info", reason="a\nb")

    assert text.count("\n") == 1


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("field", ["secret", "jwt_secret", "broadcast_key", "token", "Authorization"])
def test_a_field_named_like_a_secret_does_not_show_its_value(format: str, field: str) -> None:
    line = logged(format, "started", **{field: "hush-hush"})

    assert "hush-hush" not in line
    assert "(set)" in line


def test_what_is_below_the_level_is_not_logged() -> None:
    assert logged("text", "hello", level="warn") == ""


def test_other_libraries_are_heard_from_warnings_up() -> None:
    out = StringIO()
    logs.configure("debug", "text", out)

    logging.getLogger("aiohttp").info("chatter")
    logging.getLogger("aiohttp").warning("trouble")

    assert "chatter" not in out.getvalue()
    assert "warn aiohttp: trouble" in out.getvalue()


@pytest.mark.parametrize(("payloads", "told"), [(True, True), (False, False)])
def test_what_clients_send_is_logged_when_it_is_asked_for_and_not_by_a_level_alone(payloads: bool, told: bool) -> None:
    out = StringIO()
    logs.configure("debug", "text", out, payloads=payloads)

    logging.getLogger("ropewalk.wire").debug("in", extra={"data": "payload"})
    logging.getLogger("ropewalk.session").debug("refused")

    assert ("payload" in out.getvalue()) is told
    assert "refused" in out.getvalue()


def test_payloads_are_logged_whatever_the_level_says() -> None:
    out = StringIO()
    logs.configure("error", "text", out, payloads=True)

    logging.getLogger("ropewalk.wire").debug("in")

    assert "debug ropewalk.wire: in" in out.getvalue()


def test_an_exception_is_part_of_its_record() -> None:
    out = StringIO()
    logs.configure("info", "json", out)

    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("ropewalk.engine").exception("failed")

    assert "RuntimeError: broken" in json.loads(out.getvalue())["exception"]


def test_a_client_that_is_gone_before_its_answer_is_no_error() -> None:
    out = StringIO()
    logs.configure("info", "text", out)
    server = logging.getLogger("aiohttp.server")
    for error in (ConnectionResetError("gone"), ValueError("a real one")):
        server.error("Error handling request", exc_info=error)
    assert out.getvalue().count("Error handling request") == 1
    assert "a real one" in out.getvalue()
