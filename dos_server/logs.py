"""The log of a server process: lines of text, or of JSON for programs that collect logs.

A line of JSON has `time` (ISO 8601 in UTC), `level`, `logger` and `message`; an entry of the audit log also
has `audit`, an unexpected error its `traceback`.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object for each record. Line breaks in messages are escaped by JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (audit := getattr(record, "audit", None)) is not None:
            line["audit"] = audit
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def time_of(record: logging.LogRecord) -> str:
    """Return when a record was made."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def begin_logs(*, verbose: bool, as_json: bool) -> None:
    """Log to standard error: warnings, and with `verbose` what is going on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
