"""Peers of a TLS port that are slow, cut connections or send noise; certificates that change meanwhile."""

import os
import random
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from dos_client import open_connection
from dos_protocol import messages as m
from dos_protocol.errors import BrokenConnectionError
from dos_protocol.frames import encode_frame
from dos_server import embedded
from dos_server.limits import hello_seconds_max
from dos_tls import (
    BUSY_ALERT,
    CertificateExpiredError,
    PlainTextPeerError,
    TlsBusyError,
    TlsEngine,
    TlsError,
    TlsHandshakeError,
    TlsStream,
    TlsTruncatedError,
    connect_tls,
)
from dos_tls.contexts import client_context
from tests.support.certificates import HERE, Certificates, certificates

__all__ = ["certificates"]
WAIT_S = 30.0
BUSY = bytes.fromhex("15 0303 0002 02 50")
"""An alert in a record of TLS 1.2: fatal, internal_error (RFC 8446, section 6)."""


@pytest.fixture(scope="module")
def server(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(tmp_path_factory.mktemp("data"), tls=certificates.context()) as running:
        yield running


@pytest.fixture(autouse=True)
def _client(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOS_TLS", str(certificates.client))


def ping(server: embedded.EmbeddedServer, count: int = 1) -> float:
    """Use a new session. Return the longest answer time in seconds."""

    async def work() -> float:
        async with open_connection(server.url.removeprefix("dos://")) as connection:
            return max([await connection.ping() for _ in range(count)])

    return trio.run(work)


def read_to_end(sock: socket.socket, within_s: float = WAIT_S) -> bytes:
    sock.settimeout(within_s)
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def client_hello(certificates: Certificates) -> bytes:
    engine = TlsEngine(client_context(certificates.client_settings), "", name=HERE)
    assert not engine.handshake()
    return engine.take_outgoing()


def test_slow_handshakes_end_in_time_and_delay_nobody(
    server: embedded.EmbeddedServer, certificates: Certificates
) -> None:
    hello = client_hello(certificates)
    peers = [socket.create_connection(server.address) for _ in range(40)]
    try:
        for number, peer in enumerate(peers):
            peer.sendall(hello[: number * 7])
        began = time.monotonic()
        assert ping(server, 20) < 2.0, "a new session has its handshake and its answers meanwhile"
        for peer in peers:
            read_to_end(peer)
        assert time.monotonic() - began < hello_seconds_max + 10
    finally:
        for peer in peers:
            peer.close()


def test_idle_peers_lock_nobody_out_of_the_handshake(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there may be in the handshake, and each that is closed is replaced at once."""
    monkeypatch.setattr("dos_server.limits.handshakes_max", 20)
    idle = [socket.create_connection(server.address) for _ in range(30)]
    try:
        for _ in range(20):
            assert ping(server) > 0, "each honest client is served at its first attempt"
            idle.append(socket.create_connection(server.address))
        assert read_to_end(idle[0]) == BUSY, "the oldest one received the reason"
        idle[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            idle[-1].recv(1)
    finally:
        for peer in idle:
            peer.close()


def test_noise_and_cut_greetings_are_closed_and_the_server_serves_on(
    server: embedded.EmbeddedServer, certificates: Certificates
) -> None:
    chance, hello = random.Random(5), client_hello(certificates)
    pieces = [chance.randbytes(chance.randrange(1, 2000)) for _ in range(60)]
    pieces += [b"\x16\x03\x01" + chance.randbytes(chance.randrange(1, 400)) for _ in range(30)]
    pieces += [hello[:cut] for cut in range(1, len(hello), 23)]
    for _ in range(30):
        wrong = bytearray(hello)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        pieces.append(bytes(wrong))
    for piece in pieces:
        with socket.create_connection(server.address) as peer:
            peer.sendall(piece)
            peer.shutdown(socket.SHUT_WR)
            answer = read_to_end(peer)
        assert not answer or answer[0] in (0x15, 0x16, 0xD0, 0), answer[:20]
    assert ping(server) < WAIT_S


def test_noise_after_the_handshake_ends_that_session_only(
    server: embedded.EmbeddedServer, certificates: Certificates
) -> None:
    async def spoil() -> None:
        sock = (await trio.open_tcp_stream(*server.address)).socket
        with await connect_tls(sock, certificates.client_settings, "the server", name=HERE):
            await sock.send(b"\x17\x03\x03\x00\x20" + os.urandom(32))
            while await sock.recv(4096):
                pass

    trio.run(spoil)
    assert ping(server) < WAIT_S


@pytest.mark.parametrize(
    ("bytes_of_peer", "error", "words"),
    [
        (BUSY, TlsBusyError, "cannot serve one more connection"),
        (b"GET / HTTP/1.1\r\n", PlainTextPeerError, "sends plain text"),
        (b"\x16\x03\x03\x00\x04\x01\0\0\0", TlsHandshakeError, "TLS with h:1 failed: .*UNEXPECTED"),
        (b"", TlsHandshakeError, "closed the connection during the TLS handshake"),
    ],
)
def test_what_ends_a_handshake_is_named_at_once_and_at_every_later_call(
    certificates: Certificates, bytes_of_peer: bytes, error: type[TlsError], words: str
) -> None:
    engine = TlsEngine(client_context(certificates.client_settings), "h:1", name=HERE)
    assert not engine.handshake()
    if error is PlainTextPeerError:
        with pytest.raises(error, match=words):
            engine.received(bytes_of_peer)
    else:
        engine.received(bytes_of_peer)
    for call in (engine.handshake, engine.handshake, lambda: engine.read_into(memoryview(bytearray(9)))):
        with pytest.raises(error, match=words):
            call()
    assert not engine.established
    assert BUSY_ALERT == BUSY, "what a server sends that is busy"


async def _halves(certificates: Certificates) -> tuple[TlsStream, trio.socket.SocketType, TlsEngine]:
    """The client's end, and the raw socket and engine of the other one, after the handshake."""
    ours, theirs = trio.socket.socketpair()
    engine = TlsEngine(certificates.context().current(), "the client", name=None)
    found: list[TlsStream] = []

    async def client() -> None:
        found.append(await connect_tls(ours, certificates.client_settings, "the server", name=HERE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        while not engine.handshake():
            await theirs.send(engine.take_outgoing())
            engine.received(await theirs.recv(65536))
        await theirs.send(engine.take_outgoing() or b"")
    return found[0], theirs, engine


@pytest.mark.parametrize("marked", [True, False])
def test_an_end_without_its_mark_is_an_error(certificates: Certificates, marked: bool) -> None:
    """An attacker can end a connection; he must not be able to end an answer."""

    async def work() -> bytes:
        stream, theirs, engine = await _halves(certificates)
        with stream, theirs:
            engine.write(b"half an answer")
            if marked:
                engine.end()
            await theirs.send(engine.take_outgoing())
            theirs.shutdown(socket.SHUT_WR)
            first = await stream.receive_some()
            return first + await stream.receive_some()

    if marked:
        assert trio.run(work) == b"half an answer"
    else:
        with pytest.raises(TlsTruncatedError, match="cut off"):
            trio.run(work)


def test_a_session_that_is_cut_off_is_a_broken_connection(certificates: Certificates) -> None:
    """The peer is a server of our own protocol that ends in the middle of an answer."""

    async def work() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host=HERE)
        context = certificates.context().current()

        async def serve(stream: trio.SocketStream) -> None:
            tls = trio.SSLStream(stream, context, server_side=True)
            await tls.receive_some(65536)
            welcome = m.Welcome(1, b"s" * 16, 1 << 20, 1 << 20, 1000)
            await tls.send_all(encode_frame(m.encode(welcome, 1)))
            await tls.receive_some(65536)
            await tls.send_all(encode_frame(m.encode(m.Pong(b"x" * 100), 2))[:50])
            await stream.aclose()  # without the mark

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            address = f"{HERE}:{listener.socket.getsockname()[1]}"
            try:
                with pytest.raises(BrokenConnectionError, match="cut off"):
                    async with open_connection(address) as connection:
                        await connection.ping()
            finally:
                nursery.cancel_scope.cancel()

    trio.run(work)


def test_the_server_reads_changed_certificates_and_keeps_its_connections(tmp_path: Path) -> None:
    ours = Certificates(tmp_path / "tls")
    directory = ours.authority.directory / "servers" / HERE
    with embedded.start(tmp_path / "data", tls=ours.context(directory)) as running:
        address = running.url.removeprefix("dos://")

        async def work() -> None:
            async with open_connection(address) as before:
                await before.ping()
                ours.authority.renew(HERE, days=1, begins=datetime.now(UTC) - timedelta(days=2))
                with pytest.raises(CertificateExpiredError):
                    async with open_connection(address):
                        pass
                await before.ping()
                (directory / "key.pem").write_bytes(b"no key")
                with pytest.raises(CertificateExpiredError):  # what cannot be used is not used
                    async with open_connection(address):
                        pass
                ours.authority.renew(HERE)
                async with open_connection(address) as after:
                    await after.ping()
                await before.ping()

        os.environ["DOS_TLS"] = str(ours.client)  # undone by the fixture
        trio.run(work)


def test_much_data_in_both_directions_with_peers_that_read_slowly(certificates: Certificates) -> None:
    """Sent and received at once, through small socket buffers: order and content are kept."""
    sent = random.Random(3).randbytes(3_000_000)

    async def pump(stream: TlsStream, got: bytearray) -> None:
        async def send() -> None:
            left = memoryview(sent)
            while len(left):
                left = left[await stream.sendmsg([left[:7], b"", left[7:99_999]]) :]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(got) < len(sent):
                got += await stream.receive_some(5_000)

    async def work() -> None:
        pair = trio.socket.socketpair()
        for one in pair:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = TlsStream(pair[1], TlsEngine(certificates.context().current(), "the client", name=None))
        both = bytearray(), bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, server, both[1])
            client = await connect_tls(pair[0], certificates.client_settings, "the server", name=HERE)
            nursery.start_soon(pump, client, both[0])
        with client, server:
            assert [bytes(one) for one in both] == [sent, sent]

    trio.run(work)


def test_old_versions_of_tls_are_refused(server: embedded.EmbeddedServer, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.client / "ca.pem"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(server.address) as peer, pytest.raises(ssl.SSLError):
        context.wrap_socket(peer, server_hostname=HERE)


def test_nothing_is_sent_after_a_record_that_was_cut(certificates: Certificates) -> None:
    """A send that was cancelled midway: the next one would be noise to the peer."""

    async def work() -> None:
        stream, theirs, _ = await _halves(certificates)
        with stream, theirs:
            with trio.move_on_after(0.2) as scope:
                while True:
                    await stream.send_all(bytes(1 << 20))  # the peer reads nothing
            assert scope.cancelled_caught
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"more")

    trio.run(work)
