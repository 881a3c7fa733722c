"""Attacks on gateways: what is sent to them, and what is not. Honest clients are served meanwhile."""

import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

import psutil
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dos_client import open_store
from dos_gateway import webhdfs
from dos_gateway.gateway import Gateway
from dos_gateway.limits import files_max
from dos_gateway.webhdfs import serve_gateway
from dos_protocol.limits import KIB, MIB
from dos_server.testing import memory_store
from tests.dos_gateway.gateways import PREFIX, GatewayProcess, WebHdfsClient, store_of_three
from tests.support.parts import with_long
from tests.support.polling import until

HERE: Final = "127.0.0.1"
STATUS: Final = f"{PREFIX}/?op=GETFILESTATUS"
CROWD: Final = 30
SMALL: Final = {
    "connections_max": CROWD,
    "answers_max": 2,
    "uploads_max": 2,
    "idle_body_s": 0.5,
    "stalled_answer_s": 60.0,
    "stalled_others_s": 0.3,
}


class Served(NamedTuple):
    """A gateway in a thread."""

    client: WebHdfsClient
    gateway: Gateway


async def serve(started: "threading.Event", found: list[object]) -> None:
    async with memory_store() as servers, open_store(servers.url) as store, trio.open_nursery() as nursery:
        gateway = Gateway(store, "attacked", served_at="here")
        port = await nursery.start(
            lambda task_status: serve_gateway(gateway, HERE, 0, task_status=task_status)
        )
        found += [trio.lowlevel.current_trio_token(), nursery.cancel_scope, gateway, port]
        started.set()


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A gateway with small limits."""
    started, found = threading.Event(), list[object]()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(webhdfs, name, value)
        thread = threading.Thread(target=trio.run, args=(serve, started, found))
        thread.start()
        assert started.wait(60)
        token, scope, gateway, port = found
        yield Served(WebHdfsClient(port), gateway)  # type: ignore[arg-type]
        trio.from_thread.run_sync(scope.cancel, trio_token=token)  # type: ignore[attr-defined,arg-type]
        thread.join()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection((HERE, port), timeout=60) as raw:
        yield raw


def answer_to(port: int, request: bytes) -> bytes:
    """All that a gateway sends until it ends the connection, or this end is closed after a whole request."""
    with connected(port) as raw:
        with suppress(OSError):  # it is refused before all of it is sent
            raw.sendall(request)
            raw.shutdown(socket.SHUT_WR)
        return all_of(raw)


def all_of(raw: socket.socket) -> bytes:
    parts = []
    try:
        while part := raw.recv(1 << 20):
            parts.append(part)
    except ConnectionError:
        pass  # it was ended with bytes that nobody had read
    return b"".join(parts)


def request(method: str, target: str, *headers: str, body: bytes = b"", host: str = HERE) -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode() + body


CHUNKED, CREATE = "Transfer-Encoding: chunked", f"{PREFIX}/x?op=CREATE&data=true"
ATTACKS: Final = {
    "head-of-an-error": (request("HEAD", f"{PREFIX}/%ff"), b"405"),
    "head": (request("HEAD", STATUS), b"405"),
    "connect": (request("CONNECT", f"{PREFIX}/?op=GETHOMEDIRECTORY"), b"405"),
    "options": (request("OPTIONS", STATUS, "Origin: http://evil.example"), b"405"),
    "host-not-ascii": (request("PUT", f"{PREFIX}/x?op=CREATE", host="\u00ff"), b"400"),
    "host-with-a-path": (request("PUT", f"{PREFIX}/x?op=CREATE", host="evil.example/x?"), b"400"),
    "host-of-another-site": (request("GET", STATUS, host="evil.example:9870"), b"421"),
    "no-host": (f"GET {STATUS} HTTP/1.1\r\n\r\n".encode(), b"400"),
    "two-hosts": (request("GET", STATUS, "Host: evil.example"), b"400"),
    "http-0.9": (f"GET {STATUS}\r\n".encode(), b"400"),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    "tls": (bytes.fromhex("16030100a5010000a10303") + bytes(160) + b"\n", b"400"),
    "absolute-target": (request("GET", f"http://evil.example{STATUS}"), b"404"),
    "below-no-prefix": (request("GET", "/x?op=GETFILESTATUS"), b"404"),
    "beside-the-prefix": (request("GET", f"{PREFIX}x?op=GETFILESTATUS"), b"404"),
    "both-lengths": (request("PUT", CREATE, "Content-Length: 3", CHUNKED, body=b"0\r\n\r\n"), b"400"),
    "two-lengths": (request("PUT", CREATE, "Content-Length: 3", "Content-Length: 4", body=b"abc"), b"400"),
    "negative-length": (request("PUT", CREATE, "Content-Length: -1"), b"400"),
    "length-of-a-million-digits": (request("PUT", CREATE, "Content-Length: " + "9" * 60_000), b"400"),
    "other-coding": (request("PUT", CREATE, "Transfer-Encoding: gzip, chunked"), b"501"),
    "chunk-that-is-none": (request("PUT", CREATE, CHUNKED, body=b"-1\r\n\r\n"), b"400"),
    "endless-chunk-head": (request("PUT", CREATE, CHUNKED, body=b"1;" + b"x" * 200_000), b"431"),
    "huge-header": (request("GET", STATUS, "X: " + "y" * 200_000), b"431"),
    "endless-target": (b"GET " + b"/" * 200_000, b"4"),
    "folded-header": (request("GET", STATUS, " X: folded"), b"400"),
    "nul-in-a-header": (request("GET", STATUS, "X: \0"), b"400"),
    "line-end-in-a-header": (request("GET", STATUS, "X: a\rAuthorization: Bearer b"), b"400"),
    "line-end-in-a-path": (request("PUT", f"{PREFIX}/a%0d%0aX:%20y?op=CREATE"), b"400"),
    "escape-in-a-path": (request("PUT", f"{PREFIX}/%1b[31m?op=MKDIRS"), b"400"),
    "destination-outside": (request("PUT", f"{PREFIX}/a?op=RENAME&destination=/../b"), b"400"),
    "relative-destination": (request("PUT", f"{PREFIX}/a?op=RENAME&destination=b"), b"400"),
    "endless-token-request": (
        request("POST", "/oauth2/token", "Content-Length: 1000000", body=b"x" * 1_000_000),
        b"400",
    ),
    "token-without-a-key": (
        request("POST", "/oauth2/token", "Content-Length: 14", body=b"refresh_token="),
        b"401",
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with store_of_three(tmp_path_factory.mktemp("store")) as (url, _):
        yield url


@pytest.fixture(scope="module")
def gateway(store: str) -> Iterator[GatewayProcess]:
    with GatewayProcess(f"{store}/attacked") as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_request_is_refused_and_ends_nothing_else(small: Served, name: str) -> None:
    sent, code = ATTACKS[name]
    begin = answer_to(small.client.port, sent)[:12]
    assert begin.startswith(b"HTTP/1.1 " + code), begin
    assert small.client.send("GET", STATUS).code == 200


def test_what_follows_a_request_with_two_lengths_is_not_executed(small: Served) -> None:
    small.client.put("/kept", b"x")
    hidden = request("DELETE", f"{PREFIX}/kept?op=DELETE")
    sent = request("PUT", CREATE, f"Content-Length: {5 + len(hidden)}", CHUNKED, body=b"0\r\n\r\n" + hidden)
    assert answer_to(small.client.port, sent).count(b"HTTP/1.1 ") == 1
    assert small.client.get("/kept") == b"x"


def test_requests_that_are_sent_at_once_are_answered_in_order(small: Served) -> None:
    small.client.put("/é", b"12345")
    # Java's newer client asks for HTTP/2 in its first request.
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    each = (
        request("GET", f"{PREFIX}/{quote('é')}?op=OPEN", *upgrade),
        request("GET", f"{PREFIX}/none?op=OPEN"),
    )
    assert answers(small.client.port, b"".join(each) * 20) == [b"200", b"404"] * 20


def answers(port: int, sent: bytes) -> list[bytes]:
    with connected(port) as raw:
        raw.sendall(sent + request("GET", STATUS, "Connection: close"))
        return re.findall(rb"HTTP/1.1 (\d+) ", all_of(raw))[:-1]


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nHost:"], ids=["line", "header"])
def test_a_head_that_comes_slowly_ends_its_connection(small: Served, begin: bytes) -> None:
    with connected(small.client.port) as raw:
        raw.sendall(begin)
        raw.settimeout(0.05)
        sent = 0
        while True:  # each byte in time, and never the last one
            try:
                raw.sendall(b"x")
                sent += 1
                if raw.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert sent > 3


def test_an_upload_that_stalls_ends_and_pins_nothing(small: Served) -> None:
    first = small.client.ask("PUT", "CREATE", "/stalled", overwrite="true")
    at = urlsplit(first.headers["Location"])
    tree = small.gateway.serves
    assert tree is not None
    with connected(at.port or 0) as raw:
        raw.sendall(request("PUT", f"{at.path}?{at.query}", "Content-Length: 3000000", body=bytes(2_000_000)))
        until(lambda: bool(tree._pins), "a piece is stored", 60)
        assert all_of(raw) == b""
    assert not tree._pins
    assert small.client.ask("GET", "GETFILESTATUS", "/stalled").refusal == "FileNotFoundException"


def test_with_too_many_connections_the_longest_idle_one_gives_way(small: Served) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(connected(small.client.port)) for _ in range(3 * CROWD)]
        for number in range(CROWD):
            assert small.client.put(f"/crowd/{number}", b"x").code == 201
        assert crowd[0].recv(1) == b""
        crowd[-1].sendall(request("GET", STATUS, "Connection: close"))
        assert all_of(crowd[-1]).startswith(b"HTTP/1.1 200")


def test_answers_that_are_not_read_give_way_to_others(small: Served) -> None:
    body = bytes(12 * MIB)
    assert small.client.put("/large", body).code == 201
    with ExitStack() as stack:
        for _ in range(5):
            raw = stack.enter_context(connected(small.client.port))
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            raw.sendall(request("GET", f"{PREFIX}/large?op=OPEN"))
        for _ in range(2):
            assert small.client.get("/large") == body


def test_uploads_that_stall_keep_others_waiting_until_they_end(small: Served) -> None:
    with ExitStack() as stack:
        for number in range(3):
            first = small.client.ask("PUT", "CREATE", f"/waits/{number}", overwrite="true")
            at = urlsplit(first.headers["Location"])
            raw = stack.enter_context(connected(at.port or 0))
            raw.sendall(request("PUT", f"{at.path}?{at.query}", "Content-Length: 9", body=b"x"))
        assert small.client.put("/waits/whole", b"x").code == 201
        assert small.client.names("/waits") == ["whole"]


@pytest.mark.process
def test_without_file_descriptors_a_gateway_waits_and_serves_again(gateway: GatewayProcess) -> None:
    process = psutil.Process(gateway.process.pid)
    assert gateway.client.put("/a", b"1").code == 201
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert soft >= min(hard, files_max), "it has raised the limit"
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + 10, hard))
    try:
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(connected(gateway.port))
            until(lambda: b"EMFILE" in gateway.log(), "it has none left", 60)
            used = process.cpu_times().user
            until(lambda: gateway.log().count(b"accept returned EMFILE") >= 5, "it tries again", 60)
            assert process.cpu_times().user - used < 0.4, "it does not spin"
        assert gateway.client.get("/a") == b"1"
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.process
@pytest.mark.parametrize("count", with_long([1_000], [10_000]))
def test_idle_connections_take_bounded_memory_and_honest_clients_are_served(
    gateway: GatewayProcess, count: int
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2 * count:
        pytest.skip(f"{2 * count} files may not be open here: raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    process = psutil.Process(gateway.process.pid)
    before = process.memory_info().rss

    def is_so(ask: Callable[[], bool]) -> bool:
        try:
            return ask()
        except ConnectionError:  # the process stood still, and has ended all connections
            return False

    def is_written(path: str) -> bool:
        return is_so(lambda: gateway.client.put(path, b"x", overwrite=True).code == 201)

    try:
        with ExitStack() as stack:
            for number in range(count):
                raw = stack.enter_context(connected(gateway.port))
                if number % 2:
                    with suppress(ConnectionError):  # it gave way
                        raw.sendall(b"GET /webhdfs/v1/?op=GETFILESTATUS HTTP/1.1\r\n")
                if number % (count // 10) == 0:
                    until(
                        lambda path=f"/idle-{count}/{number}": is_written(path),
                        "an honest client is served",
                        60,
                    )
            assert process.memory_info().rss - before < 400 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    until(lambda: is_so(lambda: len(gateway.client.names(f"/idle-{count}")) == 10), "all are listed", 60)


LINES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                f"GET {STATUS} HTTP/1.1".encode(),
                f"PUT {PREFIX}/f?op=CREATE HTTP/1.1".encode(),
                f"PUT {CREATE} HTTP/1.1".encode(),
                f"HEAD {PREFIX}/%ff HTTP/1.0".encode(),
                b"POST /oauth2/token HTTP/1.1",
                b"Host: 127.0.0.1",
                b"Content-Length: 3",
                b"Transfer-Encoding: chunked",
                b"Expect: 100-continue",
                b"Connection: upgrade",
                b"Upgrade: h2c",
                b"Authorization: \xff",
                b"",
                b"3",
                b"abc",
                b"0",
            ]
        ),
    ),
    max_size=12,
)


@given(LINES)
def test_no_bytes_end_a_gateway(small: Served, lines: list[bytes]) -> None:
    answer_to(small.client.port, b"\r\n".join([*lines, b"", b""]))
    assert small.client.send("GET", STATUS).code == 200
