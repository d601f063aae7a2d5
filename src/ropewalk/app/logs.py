"""Structured logs: one line a record, as text or JSON, on standard error. One logger a package (`ropewalk.engine` …).

Fields are passed as `extra={"sid": sid}`. A field named like a secret never shows its value.
"""

import logging
import sys
from datetime import UTC, datetime
from json import dumps
from typing import TextIO

from ropewalk.app.settings.sections import SETTINGS

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_FIELDS = frozenset({"token", "jid", "authorization", "cookie", "key"}) | frozenset(
    setting.name for setting in SETTINGS.values() if setting.declared.secret
)
_of_this_process: dict[str, object] = {}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def configure(level: str, format: str, stream: TextIO | None = None, payloads: bool = False) -> None:
    """Set up logging of this process; `level` and `format` as in the settings. Other libraries log from level warning.

    `payloads`: log at debug level, including the contents of messages. Without it, debug logs every event without contents.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ropewalk").setLevel(_LEVELS["debug" if payloads else level])
    logging.getLogger("ropewalk.wire").setLevel(logging.DEBUG if payloads else logging.INFO)


def name_process(name: str) -> None:
    """Add the field `process` with this name to every line from now on; an empty name removes it."""
    _of_this_process.clear()
    if name:
        _of_this_process["process"] = name


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info ropewalk.engine: session restored sid=… streams=3`"""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), _level(record), f"{record.name}:", _one_line(record.getMessage())]
        words += [f"{name}={_text_value(value)}" for name, value in _fields(record).items()]
        trace = _trace(self, record)
        return " ".join(words) + (f"\n{trace}" if trace else "")


class JsonLines(logging.Formatter):
    """The same as one JSON object a line; the record's own keys win over fields of the same name."""

    def format(self, record: logging.LogRecord) -> str:
        trace = _trace(self, record)
        line = _fields(record) | {
            "time": _time(record),
            "level": _level(record),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return dumps(line | ({"exception": trace} if trace else {}), default=str, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return "warn" if record.levelno == logging.WARNING else record.levelname.lower()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return _of_this_process | {
        name: "(set)" if name.lower() in _SECRET_FIELDS and value else value
        for name, value in vars(record).items()
        if name not in _STANDARD
    }


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _one_line(text: str) -> str:
    # What a client sent may be part of a message; a line break in it must not look like a second record.
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _text_value(value: object) -> str:
    text = str(value)
    return dumps(text, ensure_ascii=False) if not text or any(mark in text for mark in ' "=\r\n\t') else text
