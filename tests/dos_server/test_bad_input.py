"""What peers may send: each piece of bad input is a named error without an effect, and others notice nothing.

A real server on loopback, spoken to below any client. "Usable" and "closed" are as protocol.md says for each
error.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_client import open_connection
from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CLOSING, BusyError, ErrorCode
from dos_protocol.frames import Frame, encode_frame
from dos_server import embedded
from dos_server.connection import report_busy
from tests.dos_protocol.test_rules import HOSTILE
from tests.support.wire import Wire

CONTENT = b"what was there before"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(tmp_path_factory.mktemp("bad-input") / "data") as running:
        with Wire(running.address) as wire:
            wire.claim("dir", 5)
            wire.append("o", b"", CONTENT)
            wire.wait_synced("o", len(CONTENT))
        yield running


@pytest.fixture(autouse=True)
def _nothing_changed(server: embedded.EmbeddedServer) -> Iterator[None]:
    """P-8 and more.

    After each test the object, the claim and the list are what they were, and others are served.
    """
    with Wire(server.address) as bystander:
        bystander.ask(m.ChangeDirectory("dir"))
        yield
        assert bystander.ask(m.Get("o", 0, 1000)).payload == CONTENT
        opened = bystander.ask(m.ChangeDirectory("dir"))
        assert opened.epoch == 5
        assert [info.name for info in opened.entries] == ["o"]
        assert bystander.ask(m.Ping(b"still here")) == m.Pong(b"still here")


def raw_header(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {
        "magic": b"\xd0\x5e", "version": 1, "opcode": 9, "flags": 0, "reserved": 0,
        "request_id": 7, "meta_bytes": 0, "payload_bytes": 0, "digest": 0,
    }  # fmt: skip
    fields.update(changes)
    return struct.pack(">2sBBHHQIIQ", *fields.values())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", ErrorCode.BAD_FRAME),
        (b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(20), ErrorCode.BAD_FRAME),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), ErrorCode.BAD_FRAME),
        (b"\x01" + bytes(31), ErrorCode.BAD_FRAME),
        (b"\xff" * 64, ErrorCode.BAD_FRAME),
        (raw_header(version=9), ErrorCode.BAD_VERSION),
        (raw_header(reserved=1), ErrorCode.BAD_FRAME),
        (raw_header(meta_bytes=65_537), ErrorCode.TOO_LARGE),
        (raw_header(payload_bytes=1_048_577), ErrorCode.TOO_LARGE),
        (raw_header(payload_bytes=2**32 - 1, meta_bytes=2**32 - 1), ErrorCode.TOO_LARGE),
        (raw_header(digest=1), ErrorCode.BAD_DIGEST),
    ],
)
@pytest.mark.parametrize("greet", [True, False])
def test_what_is_no_frame_is_named_and_the_connection_closed(
    server: embedded.EmbeddedServer, data: bytes, code: ErrorCode, greet: bool
) -> None:
    # EVIDENCE-OF: P-8
    with Wire(server.address, greet=greet) as wire:
        wire.sock.sendall(data)
        assert wire.ends()
        (error,) = wire.unasked
        assert isinstance(error, m.Error)
        assert error.code == code
        assert error.code in CLOSING
        assert error.message.isascii()


def test_a_flipped_bit_in_an_append_never_reaches_the_object(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-8
    good = encode_frame(m.encode(m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"), 3))
    for bit in (*range(0, 8 * 32, 5), 8 * 40, 8 * len(good) - 1):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with Wire(server.address) as wire:
            wire.sock.sendall(bad)
            wire.sock.shutdown(socket.SHUT_WR)
            assert wire.ends()
            assert not any(isinstance(one, m.DurabilityAck) for one in wire.unasked)


def test_a_frame_cut_short_has_no_effect(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-8
    good = encode_frame(m.encode(m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"), 3))
    for cut in range(1, len(good), 3):
        with Wire(server.address) as wire:
            wire.claim("dir", 5)
            wire.sock.sendall(good[:cut])
            wire.sock.shutdown(socket.SHUT_WR)
            assert wire.ends()
            assert wire.unasked == []


def test_an_unknown_opcode_and_an_answer_sent_as_a_request_are_named(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        for opcode in (0, 99, 77, 128, 143, 254):
            wire.sock.sendall(encode_frame(Frame(opcode, 900 + opcode, b"", b"")))
            assert wire.answer(900 + opcode).code == ErrorCode.UNKNOWN_OPCODE
        for answer in (m.DurabilityAck("o", 1, 1), m.Bye(), m.Error(1)):
            assert wire.ask(answer).code == ErrorCode.UNKNOWN_OPCODE
        assert wire.ask(m.Ping(b"x")) == m.Pong(b"x")


def test_a_whole_frame_with_a_meta_unlike_its_row_is_named_and_closed(
    server: embedded.EmbeddedServer,
) -> None:
    for opcode, meta, payload in (
        (3, b"", b"x"),
        (3, bytes(16) + b"\x05ab", b"x"),
        (4, bytes(3), b""),
        (6, bytes(8) + b"\x01o!", b""),
        (9, b"x", b""),
        (10, b"", b"x"),
        (8, b"\xff\xff", b""),
        (11, bytes(40) + b"\x01", b"x"),
        (11, bytes(41) + b"\x01ox", b""),
        (139, bytes(9), b""),
    ):
        with Wire(server.address) as wire:
            wire.sock.sendall(encode_frame(Frame(opcode, 5, meta, payload)))
            assert wire.answer(5).code == ErrorCode.BAD_FRAME
            assert wire.ends()


def test_wrong_sizes_digests_epochs_and_names_are_named_and_the_session_continues(
    server: embedded.EmbeddedServer,
) -> None:
    # EVIDENCE-OF: P-3, P-4, P-8
    size = len(CONTENT)
    with Wire(server.address) as wire:
        assert wire.ask(m.Get("o", 0, 10)).code == ErrorCode.NOT_READY
        assert wire.claim("dir", 5).entries[0].synced == size
        cases: list[tuple[m.Message, ErrorCode, int]] = [
            (m.Append("o", size + 1, 0, b"x"), ErrorCode.SIZE_MISMATCH, size),
            (m.Append("o", 0, 0, b"x"), ErrorCode.SIZE_MISMATCH, size),
            (m.Append("o", 2**64 - 1, 0, b"x"), ErrorCode.SIZE_MISMATCH, size),
            (m.Append("o", size, 1, b"x"), ErrorCode.DIGEST_MISMATCH, prefix_digest(CONTENT)),
            (m.Get("o", size + 1, 10), ErrorCode.PAST_END, size),
            (m.Get("o", 2**64 - 1, 2**32 - 1), ErrorCode.PAST_END, size),
            (m.Get("o", size + 1, 10, 60_000), ErrorCode.PAST_END, size),
            (m.Stat("o", size + 1), ErrorCode.PAST_END, size),
            (m.Get("missing", 0, 10), ErrorCode.NOT_FOUND, 0),
            (m.Stat("missing"), ErrorCode.NOT_FOUND, 0),
            (m.Delete("missing"), ErrorCode.NOT_FOUND, 0),
            (m.RepairChunk("o", 0, size, 0, 0, 0, overwrite=True, payload=b"x"), ErrorCode.NOT_READY, 0),
            (m.ChangeDirectory("dir", claim=True, epoch=4, writer_id=b"x" * 16), ErrorCode.FENCED, 5),
            (m.ChangeDirectory("dir", claim=True, epoch=5, writer_id=b"x" * 16), ErrorCode.FENCED, 5),
            (m.ChangeDirectory("dir", claim=True, epoch=2**64 - 1), ErrorCode.FENCED, 5),
        ]
        for request, code, actual in cases:
            answer = wire.ask(request)
            assert isinstance(answer, m.Error), request
            assert (answer.code, answer.actual) == (code, actual), request
            assert answer.remedy
            assert code not in CLOSING
        for name in HOSTILE:
            if all(ord(letter) < 256 for letter in name):
                for bad in (
                    m.Append(name, 0, 0, b"x"),
                    m.Get(name, 0, 1),
                    m.Stat(name),
                    m.ChangeDirectory(name),
                ):
                    assert wire.ask(bad).code == ErrorCode.BAD_NAME
        assert wire.ask(m.Stat("o")).info.synced == size


def test_before_hello_only_hello_and_quit_are_answered(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address, greet=False) as wire:
        for request in (m.Ping(b"x"), m.List(), m.ChangeDirectory("dir"), m.Configure(b""), m.Stat("o")):
            assert wire.ask(request).code == ErrorCode.NOT_READY
        assert wire.ask(m.Quit()) == m.Bye()
        assert wire.ends()
    with Wire(server.address) as wire:
        assert wire.ask(m.Hello()).code == ErrorCode.BAD_FRAME


def test_one_byte_per_packet_is_understood(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode_frame(m.encode(m.Ping(b"slow"), 99)):
            wire.sock.sendall(bytes((byte,)))
        assert wire.answer(99) == m.Pong(b"slow")


def test_ten_thousand_pipelined_requests_are_answered_in_order(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        frames = [encode_frame(m.encode(m.Ping(b"%d" % n), n)) for n in range(1000, 11_000)]
        wire.sock.sendall(b"".join(frames))
        for number in range(1000, 11_000):
            frame = wire.receive_frame()
            assert (frame.request_id, frame.payload) == (number, b"%d" % number)


def test_a_half_closed_connection_gets_its_answers(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        wire.send(m.ChangeDirectory("dir"))
        get = wire.send(m.Get("o", 0, 1000))
        wire.send(m.Get("o", len(CONTENT), 10, 60_000))
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.answer(get).payload == CONTENT
        assert wire.ends()


def test_a_ping_too_large_is_refused(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        answer = wire.ask(m.Ping(bytes(5000)))
        assert (answer.code, answer.actual) == (ErrorCode.TOO_LARGE, 4096)
        assert wire.ends()


def test_time_outs_end_silent_and_half_sent_logins_but_never_idle_sessions(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_server.connection.hello_seconds_max", 0.3)
    monkeypatch.setattr("dos_server.connection.frame_seconds_max", 0.3)
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(Wire(server.address, greet=False))
        begun = stack.enter_context(Wire(server.address))
        idle = stack.enter_context(Wire(server.address))
        begun.sock.sendall(encode_frame(m.encode(m.Ping(b"x"), 5))[:20])
        assert silent.ends()
        assert begun.ends()
        assert idle.ask(m.Ping(b"idle")) == m.Pong(b"idle")


def test_too_many_connections_are_reported_busy(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.limits.connections_max", 1)  # the bystander's
    with Wire(server.address, greet=False) as wire:
        error = wire.receive()
        assert isinstance(error, m.Error)
        assert error.code == ErrorCode.BUSY
        assert wire.ends()


def test_peers_that_do_not_greet_give_way_to_new_ones(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_server.limits.connections_max", 6)
    with contextlib.ExitStack() as stack:
        greeted = [stack.enter_context(Wire(server.address)) for _ in range(2)]
        idle = [stack.enter_context(Wire(server.address, greet=False)) for _ in range(8)]
        for _ in range(10):
            with Wire(server.address) as honest:
                assert honest.ask(m.Ping(b"honest")) == m.Pong(b"honest")
            idle.append(stack.enter_context(Wire(server.address, greet=False)))
        error = idle[0].receive()
        assert isinstance(error, m.Error)
        assert (error.code, idle[0].ends()) == (ErrorCode.BUSY, True)
        for wire in greeted:
            assert wire.ask(m.Ping(b"mine")) == m.Pong(b"mine"), "who has greeted stays"


def test_a_client_asks_a_busy_server_again(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, report = threading.Event(), report_busy

    def report_and_note(*args: Any) -> None:
        report(*args)
        refused.set()

    monkeypatch.setattr("dos_server.connection.report_busy", report_and_note)
    monkeypatch.setattr("dos_server.limits.connections_max", 1)  # the bystander's

    async def ping() -> None:
        async with open_connection(server.url.removeprefix("dos://")) as connection:
            await connection.ping()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping)
            await trio.to_thread.run_sync(refused.wait)
            monkeypatch.setattr("dos_server.limits.connections_max", 5)

    trio.run(work)
    monkeypatch.setattr("dos_server.limits.connections_max", 1)
    monkeypatch.setattr("dos_client.sessions.connection.connect_timeout_s", 0.5)
    with pytest.raises(BusyError, match="connections are open"):
        trio.run(ping)


def test_two_servers_never_share_a_data_directory(server: embedded.EmbeddedServer, tmp_path: Path) -> None:
    with embedded.start(tmp_path / "one"), pytest.raises(embedded.DataDirectoryInUseError):
        embedded.start(tmp_path / "one")
    with embedded.start(tmp_path / "one") as again:
        assert again.url.startswith("dos://127.0.0.1:")


def test_the_error_reaches_a_peer_that_continues_sending(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        wire.sock.sendall(raw_header(payload_bytes=2**32 - 1))
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                wire.sock.sendall(bytes(65_536))
        assert wire.ends()
        (error,) = wire.unasked
        assert isinstance(error, m.Error)
        assert error.code == ErrorCode.TOO_LARGE
