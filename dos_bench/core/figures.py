"""The records of a bench and its figures. Pure: bytes and times in, decisions and figures out.

The records of one object form a *digest chain*: each begins with the digest of the one before it. So a
record that is changed, missing, repeated or of another place makes the bytes after it different, too, and the
last digest stands for all of them. Records are made again for the comparison, from the body of the run. The
digest of the chain is not that of the store (`dos_protocol.digests`), whose faults it must find.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import xxhash

from dos_protocol.errors import CorruptDataError

LINK_BYTES: Final = 16
"""A record begins with the digest of the one before it, and is at least so long."""
P99_SAMPLES_MIN: Final = 100
"""With fewer samples, the 99th percentile would be the maximum."""
SAMPLES_MIN: Final = 10
"""With fewer, a rate is chance."""
WARM_UP: Final = 0.1
"""This part of the time and bytes of a measurement comes before its figures."""


class RecordChain:
    """The records of one object, one after the other. `digest`: of the newest one; `size`: bytes of all."""

    def __init__(self, body: bytes, record_bytes: int) -> None:
        if not LINK_BYTES <= record_bytes <= LINK_BYTES + len(body):
            raise ValueError(
                f"a record has {LINK_BYTES} to {LINK_BYTES + len(body)} bytes, not {record_bytes}"
            )
        self.record_bytes = record_bytes
        self._rest = body[: record_bytes - LINK_BYTES]
        self.digest = bytes(LINK_BYTES)
        self.count = self.size = 0

    def next(self) -> bytes:
        record = self.digest + self._rest
        self.digest = xxhash.xxh3_128_digest(record)
        self.count += 1
        self.size += len(record)
        return record


def check_equal(where: str, offset: int, expected: bytes, found: bytes) -> None:
    """Raise CorruptDataError, with the first place that differs, unless the bytes read at `offset` are those
    that were written there.
    """
    if found == expected:
        return
    for place, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            raise CorruptDataError(where, offset + place, f"0x{one:02x}", f"0x{other:02x}")
    shorter = min(len(expected), len(found))
    raise CorruptDataError(where, offset + shorter, f"{len(expected)} bytes", f"{len(found)} bytes")


class Comparison:
    """Compares what is read of one object, in pieces of any size, with its records, made again."""

    def __init__(self, where: str, body: bytes, written: RecordChain) -> None:
        self._where, self._written = where, written
        self._chain = RecordChain(body, written.record_bytes)
        self._left = b""
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Raises CorruptDataError with the offset of the first byte that is not the one that was written."""
        at = 0
        while at < len(data):
            if not self._left:
                self._left = self._chain.next()
            count = min(len(data) - at, len(self._left))
            check_equal(self._where, self.size, self._left[:count], data[at : at + count])
            self._left = self._left[count:]
            at += count
            self.size += count

    def finish(self) -> None:
        """Raises CorruptDataError unless exactly the records that were written have been compared."""
        written = self._written
        if self.size != written.size:
            raise self._wrong(min(self.size, written.size), f"{written.size} bytes", f"{self.size} bytes")
        if self._chain.digest != written.digest:
            raise self._wrong(
                self.size, f"digest {written.digest.hex()}", f"digest {self._chain.digest.hex()}"
            )

    def _wrong(self, offset: int, expected: str, found: str) -> CorruptDataError:
        return CorruptDataError(self._where, offset, expected, found)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One line of the result. samples: how many times were measured; of a rate alone, how many records.

    per_s, bytes_per_s: None where a rate has no meaning. p99_ms: None below `P99_SAMPLES_MIN` samples.
    """

    what: str
    samples: int
    record_bytes: int | None = None
    writers: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    per_s: float | None = None
    bytes_per_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest of the ordered values that at least `part` of them do not exceed."""
    return ordered[math.ceil(part * len(ordered)) - 1]


class BenchBudget:
    """Seconds and bytes that a number of measurements share equally; what one leaves, the others have."""

    def __init__(self, seconds: float, size: int, parts: int) -> None:
        self._seconds, self._bytes, self._parts = seconds, size, parts

    def share(self) -> tuple[float, int]:
        """Return the seconds and bytes of the next measurement."""
        return self._seconds / self._parts, self._bytes // self._parts

    def spend(self, seconds: float, size: int) -> None:
        self._seconds = max(0.0, self._seconds - seconds)
        self._bytes = max(0, self._bytes - size)
        self._parts -= 1


class AppendMeter:
    """One measurement of appends that are waited for, within seconds and bytes, after a warm-up.

    over: whether the writers must end. Times are of one clock, in seconds. A time counts if its append was
    begun after the warm-up; the rate counts what ended between the warm-up and the end.
    """

    def __init__(self, begun_s: float, seconds: float, size: int) -> None:
        self._begun_s, self._seconds, self._size = begun_s, seconds, size
        self._warm_at: float | None = None
        self._now = begun_s
        self.spent = self.done = 0
        self.times_s: list[float] = []
        self.over = False

    @classmethod
    def of(cls, times_s: Sequence[float], done: int) -> "AppendMeter":
        """Return a finished measurement with these times, one after the other, in which `done` were done."""
        meter = cls(0.0, 0.0, 0)
        meter.times_s, meter.done = list(times_s), done
        meter._warm_at, meter._now = 0.0, sum(times_s)
        return meter

    def take(self, size: int) -> bool:
        """Return whether one more append of this size fits; it is counted then."""
        if self.over or self.spent + size > self._size:
            self.over = True
            return False
        self.spent += size
        return True

    def note(self, begin_s: float, end_s: float) -> None:
        """Take the times of one append."""
        if self._warm_at is None:
            if end_s - self._begun_s >= WARM_UP * self._seconds or self.spent >= WARM_UP * self._size:
                self._warm_at = self._now = end_s
            return
        if begin_s >= self._warm_at:
            self.times_s.append(end_s - begin_s)
        if not self.over:
            self.done += 1
            self._now = end_s
            self.over = end_s - self._begun_s >= self._seconds

    @property
    def measured_s(self) -> float:
        """The seconds that the rate is of."""
        return 0.0 if self._warm_at is None else self._now - self._warm_at


def row_of_times(
    what: str, meter: AppendMeter, *, record_bytes: int | None = None, writers: int | None = None
) -> BenchRow:
    """Return a row with the percentiles and the rate of a measurement."""
    ordered, seconds = sorted(meter.times_s), meter.measured_s
    if not ordered:
        return BenchRow(what, 0, record_bytes, writers)
    per_s = meter.done / seconds if meter.done >= SAMPLES_MIN and seconds else None
    return BenchRow(
        what,
        len(ordered),
        record_bytes,
        writers,
        1_000 * percentile(ordered, 0.5),
        1_000 * percentile(ordered, 0.99) if len(ordered) >= P99_SAMPLES_MIN else None,
        1_000 * ordered[-1],
        per_s,
        None if per_s is None or record_bytes is None else per_s * record_bytes,
    )
