"""Much data through a server over TLS: with frames of all sizes, and a client that reads late."""

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.frames import FrameDecoder, encode_frame
from dos_server import embedded
from dos_tls import TlsEngine
from dos_tls.contexts import client_context
from tests.support.certificates import HERE, Certificates, certificates

__all__ = ["certificates"]
CHANCE = random.Random(11)
PIECES = [CHANCE.randbytes(size) for size in [1, 16_000, 16_384, 16_385, 200_000, 1 << 20, *[700] * 900]]
CONTENT = b"".join(PIECES)


@pytest.fixture
def raw(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLSocket]:
    """A connection with small buffers, after HELLO and CWD."""
    context = ssl.create_default_context(cafile=str(certificates.client / "ca.pem"))
    with embedded.start(tmp_path_factory.mktemp("data"), tls=certificates.context()) as server:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        plain.settimeout(60)
        plain.connect(server.address)
        with context.wrap_socket(plain, server_hostname=HERE) as sock:
            sock.sendall(
                b"".join(encode_frame(m.encode(one, 1)) for one in (m.Hello(), m.ChangeDirectory("d")))
            )
            yield sock


def answers(sock: ssl.SSLSocket) -> Iterator[m.Message]:
    decoder = FrameDecoder()
    while True:
        count = sock.recv_into(decoder.writable())
        assert count, "the server closed the connection"
        decoder.wrote(count)
        while (frame := decoder.next_frame()) is not None:
            yield m.decode(frame)


def test_all_bytes_come_in_order_and_go_out_in_order(raw: ssl.SSLSocket) -> None:
    received = answers(raw)
    assert isinstance(next(received), m.Welcome)
    assert isinstance(next(received), m.DirectoryOpened)
    digest, size, frames = PrefixDigest(), 0, []
    for number, piece in enumerate(PIECES):
        frames.append(encode_frame(m.encode(m.Append("o", size, digest.value, piece), number + 3)))
        digest.update(piece)
        size += len(piece)
    raw.sendall(b"".join(frames))
    synced = 0
    while synced < size:
        answer = next(received)
        assert isinstance(answer, m.DurabilityAck), answer
        synced = answer.synced
    # more than the buffers of both ends hold: the server cannot send all while nothing is read
    offsets = [offset for _ in range(6) for offset in range(0, size, 1 << 20)]
    requests = [m.encode(m.Get("o", at, 1 << 20), 9000 + number) for number, at in enumerate(offsets)]
    raw.sendall(b"".join(map(encode_frame, requests)))
    total = 0
    for _ in requests:
        answer = next(received)
        assert isinstance(answer, m.Data), answer
        assert answer.payload == CONTENT[answer.offset : answer.offset + len(answer.payload)]
        total += len(answer.payload)
    assert total


@pytest.mark.parametrize("ends", [False, True], ids=["open", "half-closed"])
def test_what_was_decrypted_and_not_read_is_read_without_further_bytes(
    certificates: Certificates, tmp_path: Path, ends: bool
) -> None:
    """More frames in one packet than the small buffer of a new connection holds, and then silence; or the end
    of what the client sends: it gets its answers, and then the end.
    """
    engine = TlsEngine(client_context(certificates.client_settings), "the server", name=HERE)
    pongs, decoder, count = 0, FrameDecoder(), None
    with (
        embedded.start(tmp_path, tls=certificates.context()) as server,
        socket.create_connection(server.address, timeout=30) as sock,
    ):
        while not engine.handshake():
            sock.sendall(engine.take_outgoing())
            engine.received(sock.recv(65536))
        requests = [m.Hello(), *[m.Ping(bytes(700))] * 40]
        engine.write(b"".join(encode_frame(m.encode(one, at + 1)) for at, one in enumerate(requests)))
        if ends:
            engine.end()
        sock.sendall(engine.take_outgoing())
        if ends:
            sock.shutdown(socket.SHUT_WR)
        while count != 0 if ends else pongs < 40:
            while (count := engine.read_into(decoder.writable())) is None:
                engine.received(sock.recv(65536))
            decoder.wrote(count)
            while (frame := decoder.next_frame()) is not None:
                pongs += isinstance(m.decode(frame), m.Pong)
    assert pongs == 40
