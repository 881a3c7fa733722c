"""The HTTP port of any process, and the question to its event loop."""

import errno
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio
from prometheus_client import CollectorRegistry, Gauge

from dos_client import metrics
from dos_monitoring import (
    HealthServer,
    MetricsListen,
    SilentLoopError,
    answer_of_loop,
    serve_health,
    silence_of,
)
from tests.support.http import fetch_url

WAIT_S = 60.0


def fetch(address: tuple[str, int], path: str) -> tuple[int, str]:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return fetch_url(f"http://{host}:{address[1]}{path}", WAIT_S)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_hangs_is_neither_alive_nor_ready(host: str) -> None:
    registry, hangs, unready = CollectorRegistry(), [""], [""]
    Gauge("a_figure", "Any", registry=registry).set(7)
    with closing(
        HealthServer(registry, host, 0, hangs=lambda: hangs[0], not_ready=lambda: unready[0])
    ) as server:
        assert "a_figure 7.0" in fetch(server.address, "/metrics")[1]
        assert fetch(server.address, "/healthz") == fetch(server.address, "/readyz?x=1") == (200, "ok\n")
        unready[0] = "it waits"
        assert fetch(server.address, "/healthz") == (200, "ok\n")
        assert fetch(server.address, "/readyz") == (503, "it waits\n")
        hangs[0] = "it hangs"
        assert fetch(server.address, "/healthz") == fetch(server.address, "/readyz") == (503, "it hangs\n")
        assert fetch(server.address, "/")[0] == 404
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{host if host != '::1' else '[::1]'}:{server.port}/healthz")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (
            b"GET /metrics HTTP/1.1\r\n" + b"".join(b"x%d: 1\r\n" % one for one in range(200)) + b"\r\n",
            b" 431 ",
        ),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 100_000 + b"\r\n\r\n", b" 431 "),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/9.9.9\r\n\r\n", b"400"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b" 501 "),
        (b"GET /metr", b""),
    ],
    ids=range(7),
)
def test_an_absurd_request_is_refused_without_a_traceback(
    request_bytes: bytes, status: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with closing(HealthServer(CollectorRegistry(), "127.0.0.1", 0)) as server:
        with socket.create_connection(server.address, timeout=WAIT_S) as peer:
            try:
                peer.sendall(request_bytes)
                peer.shutdown(socket.SHUT_WR)
                assert status in peer.recv(1_000)[:200]
            except OSError as error:  # the server may reset before it has read all
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                    raise
        with socket.create_connection(server.address) as peer:  # leaves by a reset in the middle
            peer.sendall(request_bytes[:20])
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert fetch(server.address, "/healthz") == (200, "ok\n")
    assert "Traceback" not in capfd.readouterr().err


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with closing(HealthServer(CollectorRegistry(), "127.0.0.1", 0)) as one:
        two_ports = MetricsListen("127.0.0.1", (one.port, 0))
        with closing(serve_health(two_ports, CollectorRegistry())) as two:
            assert two.port not in (0, one.port)
        with pytest.raises(OSError, match="in use"):
            serve_health(MetricsListen("127.0.0.1", (one.port, one.port)), CollectorRegistry())


@pytest.fixture
def loop() -> Iterator[tuple[trio.lowlevel.TrioToken, threading.Event]]:
    """A loop in another thread, which blocks while the event is clear."""
    tokens: list[trio.lowlevel.TrioToken] = []
    begun, moves, end = threading.Event(), threading.Event(), threading.Event()
    moves.set()

    async def run() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        begun.set()
        await trio.to_thread.run_sync(end.wait)

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert begun.wait(WAIT_S)
    yield tokens[0], moves
    moves.set()
    end.set()
    thread.join()
    assert silence_of(tokens[0]) == "its event loop has ended"


def test_a_loop_answers_unless_it_is_blocked(loop: tuple[trio.lowlevel.TrioToken, threading.Event]) -> None:
    token, moves = loop
    assert answer_of_loop(token, lambda: 7) == 7
    assert silence_of(token) == ""
    with pytest.raises(ZeroDivisionError):
        answer_of_loop(token, lambda: 1 // 0)
    moves.clear()
    token.run_sync_soon(moves.wait)
    with pytest.raises(SilentLoopError, match="has not answered for 0 s"):
        answer_of_loop(token, lambda: 7, timeout_s=0.05)
    moves.set()
    assert answer_of_loop(token, lambda: 8) == 8


def test_the_stores_of_a_process_are_in_one_of_its_ports_only() -> None:
    def shows(one: metrics.SharedFigures) -> bool:
        return any(family.name == "dos_client_questions" for family in one.collect())

    first, second = metrics.SharedFigures(), metrics.SharedFigures()
    assert (shows(first), shows(second)) == (True, False)
    first.close()
    assert (shows(first), shows(second)) == (False, True)
    second.close()
