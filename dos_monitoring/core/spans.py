"""A span of a trace as a plain value, and where spans are sent. Pure.

Spans are made after the fact, from durations that a process knows anyway: nothing is measured for them, and
no message has a context of a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from dos_protocol.errors import DosError

TRACE_VARIABLE: Final = "DOS_TRACE"
"""The environment variable that asks for spans."""
APPENDS_VARIABLE: Final = "DOS_TRACE_APPENDS"
"""The environment variable that asks for spans of appends: N for every Nth append of each object."""

Attribute: TypeAlias = str | int | float | bool
TraceTarget: TypeAlias = Literal["otlp", "console", "file", "app"]
_ALONE: Final[Mapping[str, TraceTarget]] = {"otlp": "otlp", "console": "console", "app": "app"}


class TraceSettingsError(DosError, ValueError):
    """A variable about spans has a value without a meaning. Nothing was started."""


class TraceChoice(NamedTuple):
    """Where spans are sent."""

    target: TraceTarget
    path: str = ""
    """The file, for `file`."""


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span that has ended. Times are in seconds since the beginning of the root of its trace."""

    name: str
    begin_s: float
    end_s: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    children: tuple["SpanRecord", ...] = ()
    error: str = ""


def parse_trace_choice(text: str) -> TraceChoice | None:
    """Return what DOS_TRACE means; None for "". Raises TraceSettingsError."""
    kind, _, path = text.partition(":")
    if not text:
        return None
    if (target := _ALONE.get(text)) is not None:
        return TraceChoice(target)
    if kind == "file" and path:
        return TraceChoice("file", path)
    raise TraceSettingsError(
        f"{TRACE_VARIABLE} names no place for spans: {text!r}",
        remedy="set it to otlp, console, file:PATH, or app for the tracer provider of the program",
    )


def parse_appends_traced(text: str) -> int:
    """Return what DOS_TRACE_APPENDS means; 0 for "". Raises TraceSettingsError."""
    if (text.isascii() and text.isdigit()) or not text:
        return int(text or 0)
    raise TraceSettingsError(
        f"{APPENDS_VARIABLE} is no number: {text!r}", remedy="set it to N for every Nth append of each object"
    )


def in_sequence(
    prefix: str, phases_s: Mapping[str, float], *, begin_s: float, end_s: float
) -> tuple[SpanRecord, ...]:
    """Return a span for each phase, one after the other from `begin_s` on, and none beyond `end_s`."""
    found, at_s = [], begin_s
    for phase, seconds in phases_s.items():
        until_s = min(max(at_s + seconds, at_s), end_s)
        found.append(SpanRecord(f"{prefix}.{phase}", at_s, until_s))
        at_s = until_s
    return tuple(found)
