"""`dos journal timeline`: a text chart of the bytes, records and events of a journal over time."""

import json
from datetime import UTC, datetime
from typing import Any

from journal.core.inspection import Located
from journal.core.timeline import Timeline, TimelineInterval
from journal.inspecting import Consumer

BAR = "#"


def timeline_of(timeline: Timeline) -> Consumer:
    """Return a consumer that counts all records in `timeline`."""

    def consume(records: list[Located]) -> bool:
        for located in records:
            timeline.take(located)
        return True

    return consume


def as_text(timeline: Timeline, *, lines: int, columns: int) -> str:
    """Format one line per interval: its time, bytes as a bar and a number, records, offset, and events."""
    stretches = timeline.stretches(lines)
    if not stretches:
        return "no records"
    most = max(stretch.bytes for stretch in stretches)
    rows = [
        (
            _when(stretch, timeline),
            f"{stretch.bytes:,} bytes",
            f"{stretch.records:,} records",
            f"from {stretch.offset:,}" if timeline.by_time and stretch.records else "",
            _events(stretch),
        )
        for stretch in stretches
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    room = max(columns - sum(widths) - max(len(row[4]) for row in rows) - 10, 10)
    text = []
    for stretch, (when, *counts, events) in zip(stretches, rows, strict=True):
        bar = BAR * (-(-stretch.bytes * room // most) if most else 0)
        cells = "  ".join(f"{one:>{width}}" for one, width in zip(counts, widths[1:], strict=True))
        text.append(f"{when:<{widths[0]}}  {bar:<{room}}  {cells}  {events}".rstrip())
    return "\n".join(text)


def as_json(timeline: Timeline, *, lines: int) -> str:
    """Format one JSON object: `by`, "time" (ms since 1970) or "offset", and the intervals as `stretches`."""
    row: dict[str, Any] = {
        "by": "time" if timeline.by_time else "offset",
        "stretches": [
            {
                "begin": stretch.begin,
                "offset": stretch.offset if stretch.records else None,
                "records": stretch.records,
                "bytes": stretch.bytes,
                **dict(stretch.events),
            }
            for stretch in timeline.stretches(lines)
        ],
    }
    return json.dumps(row)


def _when(stretch: TimelineInterval, timeline: Timeline) -> str:
    if not timeline.by_time:
        return f"{stretch.begin:,}"
    return datetime.fromtimestamp(stretch.begin / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _events(stretch: TimelineInterval) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(stretch.events.items()))
