"""Spans for OpenTelemetry, if a process is asked for them. Nothing of OpenTelemetry is imported otherwise."""

import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dos_monitoring.core.settings import (
    APPENDS_VARIABLE,
    TRACE_VARIABLE,
    SpanRecord,
    TraceChoice,
    parse_appends_traced,
    parse_trace_choice,
)
from dos_protocol.lazy_names import missing_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.trace import Tracer as OtelTracer

_SCOPE: Final = "dos"


class Tracer:
    """Passes spans on to a tracer of OpenTelemetry. May be used from any thread; never blocks on a network:
    spans are sent by a thread of OpenTelemetry, and dropped if it cannot keep up.
    """

    def __init__(self, tracer: "OtelTracer") -> None:
        self._tracer = tracer

    def emit(self, root: SpanRecord) -> None:
        """Emit a span that ends now, and all below it."""
        self._emit(root, None, time.time_ns() - round(root.end_s * 1e9))

    def _emit(self, span: SpanRecord, parent: "Span | None", origin_ns: int) -> None:
        from opentelemetry import context, trace

        below = trace.set_span_in_context(parent, context.Context()) if parent else context.Context()
        made = self._tracer.start_span(
            span.name,
            context=below,
            attributes=dict(span.attributes),
            start_time=origin_ns + round(span.begin_s * 1e9),
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        for child in span.children:
            self._emit(child, made, origin_ns)
        made.end(origin_ns + round(span.end_s * 1e9))


def tracer_of_environment() -> Tracer | None:
    """Return where DOS_TRACE sends the spans of this process; None if it is not set.

    Raises ValueError for a value without a meaning, MissingExtraError without the extra `otel`, and
    OSError for a file that cannot be written.
    """
    choice = parse_trace_choice(os.environ.get(TRACE_VARIABLE, ""))
    return None if choice is None else _tracer_of(choice)


def appends_traced() -> int:
    """Return N if spans of every Nth append are asked for, otherwise 0. Raises ValueError."""
    return parse_appends_traced(os.environ.get(APPENDS_VARIABLE, ""))


@cache
def _tracer_of(choice: TraceChoice) -> Tracer:
    try:
        if choice.target == "app":
            from opentelemetry import trace

            return Tracer(trace.get_tracer(_SCOPE))
        return Tracer(_provider(choice).get_tracer(_SCOPE))
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{TRACE_VARIABLE}={choice.target}") or error from error


def _provider(choice: TraceChoice) -> "TracerProvider":
    """Return a provider of this project alone: that of the program stays as it is."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(resource=Resource.create({} if named else {SERVICE_NAME: _SCOPE}))
    provider.add_span_processor(BatchSpanProcessor(_exporter(choice)))
    return provider


def _exporter(choice: TraceChoice) -> "SpanExporter":
    if choice.target == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    # the file stays open as long as the process, which writes spans until its end
    output = Path(choice.path).open("a", encoding="utf-8") if choice.path else sys.stderr  # noqa: SIM115
    return ConsoleSpanExporter(out=output, formatter=lambda span: f"{span.to_json(indent=None)}\n")
