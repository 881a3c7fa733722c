"""How columns of days, times and durations take values. A time without a zone is in UTC."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from dataflow.values.kinds import Makers, MisfitError, ValueRule, no, plain, types_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def zone_of(kind: pa.DataType) -> Any:
    """Return the zone of the values of a timestamp type, None for a wall clock."""
    return None if kind.tz is None else pa.scalar(0, kind).as_py().tzinfo


def _nanos(value: Any) -> int:
    """Return the nanoseconds below a microsecond of a Timestamp or Timedelta of pandas."""
    return 0 if type(value) in (datetime, timedelta) else int(getattr(value, "nanosecond", 0) or 0)


def _day(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> date | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, datetime):
            if value.tzinfo is None and value.time() == time() and not _nanos(value):
                return value.date()
        elif isinstance(value, date):
            return date(value.year, value.month, value.day)
        holds = "days, and times without a zone at 00:00"
        raise MisfitError(kind, holds, value, "say which day it is, with .date()")

    return ValueRule(take, lambda values: not values or types_of(values) == {date})


def _held(value: datetime, kind: pa.DataType, zone: Any) -> datetime | None:
    """Return a time as a column gives it back; None if it is not exactly the same. Raises OverflowError for a
    year that the zone of the column does not have.
    """
    if value.tzinfo is not None and (zone is None or value.utcoffset() is None):
        return None
    if kind.unit == "ns":
        return _held_nanos(value, kind)
    if _nanos(value) or value.microsecond % _MICROS[kind.unit]:
        return None
    if type(value) is not datetime or value.fold:
        value = datetime.combine(value.date(), value.timetz())  # without the class of pandas
        value = value.replace(fold=0) if value.tzinfo is None else value.astimezone(UTC)
    if zone is None or value.tzinfo is zone:
        return value
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).astimezone(zone)


def _held_nanos(value: datetime, kind: pa.DataType) -> datetime | None:
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    nanos = _micros(since) * 1_000 + _nanos(value)
    if not -(1 << 63) <= nanos < 1 << 63:
        return None
    made: datetime = pa.scalar(nanos, pa.int64()).cast(kind).as_py()
    return made


def _timestamp(kind: pa.DataType) -> ValueRule:
    unit, zone = kind.unit, zone_of(kind)
    quick_zones = {None, UTC, zone} if kind.tz == "UTC" else {zone}
    # In other zones, the first and last times that Arrow takes could not be read
    if zone is None:
        holds = "times without a zone"
        remedy = "pass a datetime without a zone: value.astimezone(zone).replace(tzinfo=None)"
    else:
        holds = "times; one without a zone is in UTC"
        remedy = "pass a datetime: datetime.fromtimestamp(seconds, UTC), or datetime.fromisoformat(text)"
    if unit in ("s", "ms"):
        holds += f", of whole {unit}"

    def take(value: Any) -> datetime | None:
        if type(value) is not datetime:
            value = plain(value)
            if value is None:
                return None
        made = None
        try:
            if isinstance(value, datetime):
                made = _held(value, kind, zone)
            elif isinstance(value, date):
                made = _held(datetime(value.year, value.month, value.day), kind, zone)  # noqa: DTZ001 - the rule says UTC
        except OverflowError:
            pass  # a year that does not exist in the zone of the column
        if made is None:
            raise MisfitError(kind, holds, value, remedy)
        return made

    def quick(values: Sequence[Any]) -> bool:
        if not values:
            return True
        return (
            unit == "us"
            and types_of(values) == {datetime}
            and set(map(attrgetter("tzinfo"), values)) <= quick_zones
        )

    return ValueRule(take, quick)


def _micros(gap: timedelta) -> int:
    return (gap.days * 86_400 + gap.seconds) * 1_000_000 + gap.microseconds


def _time_of_day(kind: pa.DataType) -> ValueRule:
    step = _MICROS.get(kind.unit, 1)

    def take(value: Any) -> time | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, time) and value.tzinfo is None and value.microsecond % step == 0:
            return value.replace(fold=0)
        holds = f"times of day without a zone, of whole {kind.unit}"
        raise MisfitError(kind, holds, value, "pass a datetime.time")

    return ValueRule(take, no)


def _duration(kind: pa.DataType) -> ValueRule:
    nanos_of = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}[kind.unit]

    def take(value: Any) -> timedelta | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, timedelta):
            below = 0 if type(value) is timedelta else int(getattr(value, "nanoseconds", 0))
            nanos = _micros(value) * 1_000 + below
            if nanos % nanos_of == 0 and -(1 << 63) <= nanos // nanos_of < 1 << 63:
                made: timedelta = pa.scalar(nanos // nanos_of, pa.int64()).cast(kind).as_py()
                return made
        raise MisfitError(kind, f"durations of whole {kind.unit}", value, "pass a datetime.timedelta")

    return ValueRule(take, no)


TIMES: Final[Makers] = (
    (pa.types.is_date, _day),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time_of_day),
    (pa.types.is_duration, _duration),
)
