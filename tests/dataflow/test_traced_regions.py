"""Spans of a real region, of a driver and workers that are processes, at a receiver of OTLP over HTTP."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.polling import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
WAIT_S = 60.0


class Received:
    """The spans of all processes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        received = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        received.extend(scope.spans)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> list[Any]:
        return [one for one in list(self.spans) if one.name == name]

    def below(self, parent: Any) -> list[Any]:
        """The children of a span, in the order of their beginning."""
        found = [one for one in list(self.spans) if one.parent_span_id == parent.span_id]
        assert all(one.trace_id == parent.trace_id for one in found)
        return sorted(found, key=lambda one: (one.start_time_unix_nano, one.end_time_unix_nano))


@pytest.fixture
def received() -> Iterator[Received]:
    receiver = Received()
    yield receiver
    receiver.close()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_checkpoints_recoveries_and_appends_are_traced(
    shared_store: str, tmp_path: Path, received: Received
) -> None:
    variables = {"DOS_TRACE": "otlp", "DOS_TRACE_APPENDS": "3", "OTEL_EXPORTER_OTLP_ENDPOINT": received.url}
    done = subprocess.run(
        [sys.executable, "-m", "tests.dataflow.traced_driver", shared_store, str(tmp_path)],
        env={**os.environ, **variables, "OTEL_BSP_SCHEDULE_DELAY": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    until(lambda: len(received.named("dos.checkpoint")) > 2, "the last spans", WAIT_S)
    check_checkpoint(received)
    check_recovery(received)
    check_append(received)


def check_checkpoint(received: Received) -> None:
    checkpoint = received.named("dos.checkpoint")[0]
    assert attributes(checkpoint)["dos.region"] == "traced"
    *votes, commit = sorted(received.below(checkpoint), key=lambda one: one.end_time_unix_nano)
    assert commit.name == "dos.checkpoint.commit"
    assert commit.end_time_unix_nano == checkpoint.end_time_unix_nano
    assert {one.name for one in votes} == {"dos.checkpoint.vote"}
    assert sorted(attributes(one)["dos.worker"] for one in votes) == [0, 1]
    assert commit.start_time_unix_nano == max(one.end_time_unix_nano for one in votes)
    for vote in votes:
        phases = received.below(vote)
        assert [one.name.rpartition(".")[2] for one in phases] == ["align", "drain", "write", "sync"]
        assert checkpoint.start_time_unix_nano <= phases[0].start_time_unix_nano
        assert phases[-1].end_time_unix_nano <= vote.end_time_unix_nano <= checkpoint.end_time_unix_nano


def check_recovery(received: Received) -> None:
    (recovery,) = received.named("dos.recovery")
    assert attributes(recovery)["dos.worker"] == 1
    phases = received.below(recovery)
    names = ["manifest", "gather", "claim", "open", "load", "start"]
    assert [one.name for one in phases] == [f"dos.recovery.{name}" for name in names]
    between = [abs(b.start_time_unix_nano - a.end_time_unix_nano) for a, b in pairwise(phases)]
    assert max(between) < 1_000, "one follows the other"
    assert abs(phases[-1].end_time_unix_nano - recovery.end_time_unix_nano) < 1_000_000


def check_append(received: Received) -> None:
    complete = [
        one
        for one in received.named("dos.append")
        if not any(child.status.code for child in received.below(one))
    ]
    assert complete
    append = complete[0]
    assert attributes(append)["dos.directory"].startswith("traced.")
    children = received.below(append)
    members = [one for one in children if one.name == "dos.append.member"]
    (quorum,) = [one for one in children if one.name == "dos.append.quorum"]
    assert len({attributes(one)["dos.member"] for one in members}) == 3
    ends = sorted(one.end_time_unix_nano for one in members)
    assert quorum.end_time_unix_nano == ends[1], "two of three are a quorum"
    assert append.end_time_unix_nano == ends[2]
