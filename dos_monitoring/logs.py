"""The log of a process: lines of text, or of JSON for programs that collect logs.

A line of JSON has `time` (ISO 8601 in UTC), `level`, `logger` and `message`; an entry of the audit log also
has `audit`, an unexpected error its `traceback`. Lines of a region's coordinator have `region`, those of a
worker also `worker` and `incarnation`.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from dos_monitoring.core.settings import LOG_VARIABLE, LogChoice, parse_log_choice

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
Fields = Callable[[], Mapping[str, Any]]
_fields: ContextVar[Fields] = ContextVar("dos_log_fields", default=dict)


@contextmanager
def log_fields(fields: Fields) -> Iterator[None]:
    """Add these fields to every line of JSON that this thread writes in the block, or this task and those
    that it starts. `fields` is called for each line, in the thread that writes it.
    """
    before = _fields.set(fields)
    try:
        yield
    finally:
        _fields.reset(before)


def adopting_log_fields() -> Callable[[], None]:
    """Return a function that gives the fields of this thread to the thread that calls it."""
    return partial(_set, _fields.get())


def _set(fields: Fields) -> None:
    _fields.set(fields)


class JsonLines(logging.Formatter):
    """One JSON object for each record. Line breaks in messages are escaped by JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields.get()(),
        }
        if (audit := getattr(record, "audit", None)) is not None:
            line["audit"] = audit
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def time_of(record: logging.LogRecord) -> str:
    """Return when a record was made."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def begin_logs(choice: LogChoice, text: str = _TEXT) -> None:
    """Log to standard error. Does nothing if the program has set up logging. text: the format of a line."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if choice.as_json else logging.Formatter(text))
    logging.basicConfig(level=choice.level, handlers=[handler])


def log_choice_of_environment() -> LogChoice | None:
    """Return what DOS_LOG means, None if it is not set. Raises ValueError with a message for the user."""
    return parse_log_choice(os.environ.get(LOG_VARIABLE, ""))
