"""What the environment asks a process to show: where figures are served, how its log is written, spans. Pure.

Spans are made after the fact, from durations that a process knows anyway: nothing is measured for them, and
no message has a context of a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from dos_protocol.arguments import PORT_MAX, address_text, bare_host, is_wildcard

TRACE_VARIABLE: Final = "DOS_TRACE"
"""The environment variable that asks for spans."""
APPENDS_VARIABLE: Final = "DOS_TRACE_APPENDS"
"""The environment variable that asks for spans of appends: N for every Nth append of each object."""

Attribute: TypeAlias = str | int | float | bool
TraceTarget: TypeAlias = Literal["otlp", "console", "file", "app"]
_ALONE: Final[Mapping[str, TraceTarget]] = {"otlp": "otlp", "console": "console", "app": "app"}


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
    """Return what DOS_TRACE means; None for "". Raises ValueError with a message for the user."""
    kind, _, path = text.partition(":")
    if not text:
        return None
    if (target := _ALONE.get(text)) is not None:
        return TraceChoice(target)
    if kind == "file" and path:
        return TraceChoice("file", path)
    raise ValueError(
        f"{TRACE_VARIABLE} names no place for spans: {text!r} (set it to otlp, console, file:PATH, or app for"
        " the tracer provider of the program)"
    )


def parse_appends_traced(text: str) -> int:
    """Return what DOS_TRACE_APPENDS means; 0 for "". Raises ValueError with a message for the user."""
    if (text.isascii() and text.isdigit()) or not text:
        return int(text or 0)
    raise ValueError(
        f"{APPENDS_VARIABLE} is no number: {text!r} (set it to N for every Nth append of each object)"
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


METRICS_VARIABLE: Final = "DOS_METRICS"
"""The environment variable that a driver reads if its program names no place."""


class MetricsListen(NamedTuple):
    """A host to listen on, and the ports to try in this order; 0 selects a free one."""

    host: str
    ports: tuple[int, ...]

    def reached_at(self, port: int, own_host: str) -> str:
        """Return the address for others. own_host: where they reach this process, if it listens on every
        address of its machine.
        """
        return address_text(own_host if is_wildcard(self.host) else self.host, port)


def parse_metrics_listen(text: str) -> MetricsListen | None:
    """Return what HOST:PORT or HOST:FIRST-LAST means; None for "". Port 0 selects a free port.

    Raises ValueError with a message for the user.
    """
    if not text:
        return None
    host, colon, numbers = text.rpartition(":")
    first, dash, last = numbers.partition("-")
    ports = (first, last if dash else first)
    host = bare_host(host)
    usable = bool(colon and host) and all(one.isascii() and one.isdigit() for one in ports)
    if usable and 0 <= int(ports[0]) <= int(ports[1]) <= PORT_MAX and (int(ports[0]) or not dash):
        return MetricsListen(host, tuple(range(int(ports[0]), int(ports[1]) + 1)))
    raise ValueError(
        f"metrics take HOST:PORT or HOST:FIRST-LAST with ports up to {PORT_MAX}, or port 0, got {text!r}"
    )


LOG_VARIABLE: Final = "DOS_LOG"
"""The environment variable of drivers, workers and commands: `json`, `text`, each with `:LEVEL` if wanted."""
_FORMATS: Final = ("json", "text")
_LEVELS: Final = ("debug", "info", "warning", "error")


class LogChoice(NamedTuple):
    """The format of a log, and its lowest level: a name of the logging module."""

    as_json: bool = False
    level: str = "WARNING"


def parse_log_choice(text: str) -> LogChoice | None:
    """Return what FORMAT or FORMAT:LEVEL means, such as json:info; None for "".

    Raises ValueError with a message for the user.
    """
    if not text:
        return None
    form, colon, level = text.partition(":")
    if form not in _FORMATS or (level or (not colon and "warning")) not in _LEVELS:
        raise ValueError(
            f"{LOG_VARIABLE} is {' or '.join(_FORMATS)}, with :{', :'.join(_LEVELS)} for the lowest level,"
            f" got {text!r}"
        )
    return LogChoice(form == "json", (level or "warning").upper())
