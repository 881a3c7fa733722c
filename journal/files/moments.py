"""Moments as people write them: an offset, a time, or so long ago.

4096                        the logical offset
time:2026-11-22T03:00:00    that time, here; with +00:00 or Z, there
-90s  -10m  -1h  -2d        so long ago
"""

import re
from datetime import datetime, timedelta
from typing import Final

from journal.files.restoring import Moment

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")


def moment(text: str, now: datetime) -> Moment:
    """The moment that the text means. now: with a time zone. Raises ValueError with what can be written."""
    like = f"time:{now:%Y-%m-%dT%H:%M:%S}"
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError as error:
            raise ValueError(f"{text!r} is no moment: that is before all calendars") from error
    if not text.startswith("time:"):
        raise ValueError(
            f"{text!r} is no moment: give an offset (4096), a time ({like}) or how long ago (-1h)"
        )
    try:
        told = datetime.fromisoformat(text.removeprefix("time:"))
    except ValueError as error:
        raise ValueError(f"{text!r} is no moment: {error}; write it as {like}") from error
    return told if told.tzinfo is not None else told.astimezone()
