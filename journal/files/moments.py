"""Moments: the stop of a replay, as a value and as text.

4096                        a logical offset
time:2026-11-22T03:00:00    a local time; with +00:00 or Z, a time in that zone
-90s  -10m  -1h  -2d        an age
checkpoint:7                the end of a checkpoint, as `Directory.checkpoint` recorded it
step:41                     the end of the checkpoint at the end of a step
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from journal.core.file_ops import ReplayStop
from journal.core.position import Position
from journal.files.replaying import TO_THE_END


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """The end of a checkpoint."""

    number: int


@dataclass(frozen=True, slots=True)
class AtStep:
    """The end of the checkpoint at the end of a step."""

    number: int


Moment: TypeAlias = int | datetime | AtCheckpoint | AtStep | None
"""The stop of a replay: a logical offset, a time (with a time zone), a checkpoint, a step; None for
the end.
"""


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBERED: Final = re.compile(r"(checkpoint|step):(\d{1,19})", re.ASCII)
AGO: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")


def complete_moment(incomplete: str) -> list[str]:
    """Return the shell completions of a moment, with the current time among them."""
    now = f"time:{datetime.now(UTC).astimezone():%Y-%m-%dT%H:%M:%S}"
    return [one for one in ("checkpoint:", "step:", now, "-1h", "-1d") if one.startswith(incomplete)]


def moment_here(text: str) -> Moment:
    """Parse a moment, with the current time and the local time zone. Raises ValueError."""
    return moment(text, datetime.now(UTC).astimezone())


def moment(text: str, now: datetime) -> Moment:
    """Parse a moment. now: the current time, with a time zone. Raises ValueError, which lists the
    valid forms.
    """
    like = f"time:{now:%Y-%m-%dT%H:%M:%S}"
    if text.isascii() and text.isdigit():
        return int(text)
    if numbered := _NUMBERED.fullmatch(text):
        return (AtCheckpoint if numbered[1] == "checkpoint" else AtStep)(int(numbered[2]))
    if ago := AGO.fullmatch(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError as error:
            raise ValueError(f"{text!r} is no moment: that is before the year 1") from error
    if not text.startswith("time:"):
        raise ValueError(
            f"{text!r} is no moment: give an offset (4096), a time ({like}), how long ago (-1h),"
            " checkpoint:7 or step:41"
        )
    try:
        moment = datetime.fromisoformat(text.removeprefix("time:"))
    except ValueError as error:
        raise ValueError(f"{text!r} is no moment: {error}; write it as {like}") from error
    return moment if moment.tzinfo is not None else moment.astimezone()


def stop_at(at: Position | Moment) -> ReplayStop:
    """Return the stop of a moment. Raises ValueError for a time without a time zone."""
    if isinstance(at, Position):
        return TO_THE_END  # the chain itself is read only up to the position
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at.isoformat()} has no time zone; add +00:00 for UTC")
        return ReplayStop(wall_ms=int(at.timestamp() * 1000))
    if isinstance(at, AtCheckpoint):
        return ReplayStop(checkpoint=at.number)
    if isinstance(at, AtStep):
        return ReplayStop(step=at.number)
    return ReplayStop(size=at)
