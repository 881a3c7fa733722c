"""Spans: what is asked for, what the SDK gets of them, and that nothing is imported unless asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dos_monitoring import SpanRecord, Tracer, in_sequence
from dos_monitoring.core.settings import TraceChoice, parse_appends_traced, parse_trace_choice
from tests.dos_cli.test_extras import without_extras


def test_where_spans_go() -> None:
    assert parse_trace_choice("") is None
    assert parse_trace_choice("otlp") == TraceChoice("otlp")
    assert parse_trace_choice("app") == TraceChoice("app")
    assert parse_trace_choice("file:/a:b") == TraceChoice("file", "/a:b")
    for text in ("file:", "file", "OTLP", "otlp:x", "jaeger"):
        with pytest.raises(ValueError, match="otlp, console, file:PATH, or app"):
            parse_trace_choice(text)
    assert (parse_appends_traced(""), parse_appends_traced("100")) == (0, 100)
    with pytest.raises(ValueError, match="every Nth append"):
        parse_appends_traced("1/100")


def test_phases_follow_one_another_and_end_with_their_parent() -> None:
    phases = in_sequence("p", {"a": 1.0, "b": -0.5, "c": 3.0, "d": 1.0}, begin_s=1.0, end_s=4.0)
    assert [(one.name, one.begin_s, one.end_s) for one in phases] == [
        ("p.a", 1.0, 2.0),
        ("p.b", 2.0, 2.0),
        ("p.c", 2.0, 4.0),
        ("p.d", 4.0, 4.0),
    ]


def test_a_record_becomes_a_tree_of_spans_that_ends_now() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    leaf = SpanRecord("leaf", 1.0, 1.5, error="it failed")
    root = SpanRecord("root", 0.0, 2.0, {"n": 1, "s": "x"}, (SpanRecord("a", 0.5, 2.0, {}, (leaf,)),))
    tracer = Tracer(provider.get_tracer("t"))
    with provider.get_tracer("app").start_as_current_span("of the application"):
        tracer.emit(root)
    found = {one.name: one for one in exporter.get_finished_spans()}
    del found["of the application"]
    assert {name: one.parent and one.parent.span_id for name, one in found.items()} == {
        "root": None,
        "a": found["root"].context.span_id,
        "leaf": found["a"].context.span_id,
    }
    assert dict(found["root"].attributes or {}) == {"n": 1, "s": "x"}
    begun = found["root"].start_time or 0
    assert [round(((found[name].start_time or 0) - begun) / 1e9, 3) for name in ("a", "leaf")] == [0.5, 1.0]
    assert [round(((found[name].end_time or 0) - begun) / 1e9, 3) for name in ("root", "leaf")] == [2.0, 1.5]
    assert (found["leaf"].status.description, found["a"].status.is_ok) == ("it failed", True)
    provider.shutdown()


ASKED = """
import os, sys
os.environ["DOS_TRACE"] = {value!r}
import dos
from dos_monitoring import tracer_of_environment
try:
    print(tracer_of_environment(), "opentelemetry" in sys.modules)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("value", ["otlp", "console", "app"])
def test_without_the_extra_its_command_is_named(value: str) -> None:
    done = without_extras(ASKED.format(value=value))
    assert done.stdout == (
        f"MissingExtraError DOS_TRACE={value} needs the library opentelemetry, which is not installed"
        " (pip install 'dos-journal[otel]')\n"
    ), done.stderr


def test_nothing_is_imported_unless_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED.format(value="")], capture_output=True, text=True)
    assert done.stdout == "None False\n", done.stderr


OF_THE_PROGRAM = (
    "import sys",
    "from opentelemetry import trace",
    "from opentelemetry.sdk.trace import TracerProvider",
    "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor",
    "line = lambda span: span.to_json(indent=None) + chr(10)",
    "exporter = ConsoleSpanExporter(out=sys.stdout, formatter=line)",
    "trace.set_tracer_provider(TracerProvider())",
    "trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))",
)


@pytest.mark.parametrize("target", ["file", "console", "app"])
def test_spans_are_lines_of_json_where_they_are_to_go(target: str, tmp_path: Path) -> None:
    """console: the standard error; app: the provider of the program, which writes to its standard output."""
    path = tmp_path / "spans"
    program = "; ".join(
        (
            *(OF_THE_PROGRAM if target == "app" else ()),
            "from dos_monitoring import SpanRecord, tracer_of_environment",
            "two = SpanRecord('two', 0.0, 0.5)",
            "tracer_of_environment().emit(SpanRecord('one', 0.0, 1.0, {}, (two,)))",
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "DOS_TRACE": f"file:{path}" if target == "file" else target},
        capture_output=True,
        text=True,
    )
    written = {"console": done.stderr, "app": done.stdout}
    assert done.returncode == 0, done.stderr
    written["file"] = path.read_text() if path.exists() else ""
    assert [name for name, text in written.items() if text] == [target]
    found = [json.loads(line) for line in written[target].splitlines()]
    assert [one["name"] for one in found] == ["two", "one"]
