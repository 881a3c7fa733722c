"""The table of bad input, its rows about the wire, one test a cell, for version 1; and peers that are slow or
too many.

A real server on loopback, spoken to below any client. Each cell asserts the answer to the peer and whether it
may continue, as protocol.md says for each error; around each, the data directory must be the same to the
byte, the claim and the object what they were, and the log hold as many lines as it should, nothing raw in
them.
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
from dos_protocol.digests import digest64, prefix_digest
from dos_protocol.errors import CLOSING, BusyError, ErrorCode
from dos_protocol.frames import Frame, encode_frame
from dos_server import embedded
from dos_server.connection import report_busy
from tests.dos_server.core_requests import to_claim
from tests.support.data_tree import undisturbed
from tests.support.wire import Wire

CONTENT = b"what was there before"
SIZE = len(CONTENT)
DIGEST = prefix_digest(CONTENT)


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(data) as running:
        with Wire(running.address) as wire:
            wire.claim("dir", 5)
            wire.append("o", b"", CONTENT)
            wire.wait_synced("o", SIZE)
        yield running


@pytest.fixture(autouse=True)
def _nothing_written(
    server: embedded.EmbeddedServer, data: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    with undisturbed(data, caplog):
        yield
    with Wire(server.address) as bystander:
        assert bystander.ask(m.ChangeDirectory("dir")).epoch == 5
        assert bystander.ask(m.Get("o", 0, 1000)).payload == CONTENT


def error_of(wire: Wire) -> m.Error:
    """The one error before the end."""
    assert wire.ends()
    (error,) = wire.unasked
    assert isinstance(error, m.Error)
    assert error.message.isprintable()
    assert error.message.isascii()
    return error


def raw_header(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {
        "magic": b"\xd0\x5e", "version": 1, "opcode": 9, "flags": 0, "reserved": 0,
        "request_id": 7, "meta_bytes": 0, "payload_bytes": 0, "digest": 0,
    }  # fmt: skip
    fields.update(changes)
    return struct.pack(">2sBBHHQIIQ", *fields.values())


CLIENT_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(range(256)) * 64
STRANGERS = {
    "CR": b"\r\n" * 40,
    "LF": b"\n",
    "a NUL after a letter": b"x\0" * 40,
    "no UTF-8": b"\xc3\x28" * 30,
    "byte 0x80": b"\x80",
    "byte 0xff": b"\xff" * 64,
    "half of our magic": b"\xd0\xd0",
    "control characters": b"\x1b[2J\x1b]0;gone\x07" * 4,
    "5 KiB without an end of line": b"A" * 5 * 1024,
    "a TLS hello": CLIENT_HELLO[:300],
    "a TLS hello of 16 KiB": CLIENT_HELLO,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP that is shorter than a header": b"GET / HTTP/1.0\r\n\r\n",
    "an SSH banner": b"SSH-2.0-OpenSSH_9.6\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "the length of version 0 in the other order": b"\x01" + bytes(31),
}


@pytest.mark.parametrize("greet", [True, False], ids=["after HELLO", "at once"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_reported_once_and_closed_with_one_line_in_the_log(
    server: embedded.EmbeddedServer, stranger: str, greet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-8
    sent = STRANGERS[stranger]
    with Wire(server.address, greet=greet) as wire:
        wire.sock.sendall(sent)
        error = error_of(wire)
    assert error.code == ErrorCode.BAD_FRAME
    (line,) = caplog.messages
    assert "a frame begins with d05e, not" in line
    assert "127.0.0.1:" in line
    for words in (b"GET", b"SSH", b"AAAA", b"\x1b"):
        assert words.decode() not in line + error.message


HEADERS: dict[str, tuple[dict[str, int], ErrorCode]] = {
    "another version": ({"version": 9}, ErrorCode.BAD_VERSION),
    "reserved bytes": ({"reserved": 1}, ErrorCode.BAD_FRAME),
    "a digest of other bytes": ({"digest": 1}, ErrorCode.BAD_DIGEST),
    "meta, one too many": ({"meta_bytes": 65_537}, ErrorCode.TOO_LARGE),
    "meta, 2^31": ({"meta_bytes": 2**31}, ErrorCode.TOO_LARGE),
    "meta, -1": ({"meta_bytes": 2**32 - 1}, ErrorCode.TOO_LARGE),
    "payload, one too many": ({"payload_bytes": 1_048_577}, ErrorCode.TOO_LARGE),
    "payload, 2^31": ({"payload_bytes": 2**31}, ErrorCode.TOO_LARGE),
    "payload, -1": ({"payload_bytes": 2**32 - 1}, ErrorCode.TOO_LARGE),
    "both, one too many": ({"meta_bytes": 65_536, "payload_bytes": 1_048_577}, ErrorCode.TOO_LARGE),
}


@pytest.mark.parametrize("greet", [True, False], ids=["after HELLO", "at once"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_wrong_header_is_refused_before_anything_follows(
    server: embedded.EmbeddedServer, header: str, greet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-8, P-9
    changes, code = HEADERS[header]
    with Wire(server.address, greet=greet) as wire:
        wire.sock.sendall(raw_header(**changes))
        error = error_of(wire)
    assert error.code == code
    assert code in CLOSING
    assert len(caplog.messages) == 1


def named(count: int, name: bytes) -> bytes:
    return bytes((count,)) + name


FIELDS: dict[str, tuple[int, bytes, bytes]] = {
    "APPEND, a name longer than what is there": (3, bytes(16) + named(255, b"o"), b"x"),
    "APPEND, a name shorter than what is there": (3, bytes(16) + named(1, b"oo"), b"x"),
    "APPEND, half a size": (3, bytes(4), b""),
    "GET, a name longer than what is there": (4, bytes(16) + named(2, b"o"), b""),
    "GET with a payload": (4, bytes(16) + named(1, b"o"), b"x"),
    "LIST, one of two names": (5, bytes(4) + named(0, b""), b""),
    "STAT, bytes behind the name": (6, bytes(8) + named(1, b"o") + b"\0", b""),
    "CWD, no name": (2, bytes(25), b""),
    "CONFIGURE, more than there is": (8, struct.pack(">H", 65_535) + b"\xd0\x53", b""),
    "CONFIGURE, no record": (8, struct.pack(">H", 3) + b"\xd0\x53\x01", b""),
    "HELLO again": (1, b"\x01" + bytes(24) + bytes(4), b""),
    "a client name that is no UTF-8": (1, b"\x01" + bytes(24) + b"\0\0\0\x02\xc3\x28", b""),
    "PING with a meta": (9, b"x", b""),
    "QUIT with a payload": (10, b"", b"now"),
    "an answer, cut": (139, bytes(9), b""),
    "REPAIR cut in the middle": (11, bytes(20), b"x"),
    **{f"opcode {opcode}, nothing in it": (opcode, b"", b"") for opcode in (1, 2, 3, 4, 5, 6, 7, 8, 11)},
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_does_not_fit_is_named_and_closes(
    server: embedded.EmbeddedServer, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-8
    opcode, meta, payload = FIELDS[field]
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        wire.sock.sendall(encode_frame(Frame(opcode, 77, meta, payload)))
        assert error_of(wire).code == ErrorCode.BAD_FRAME
    assert len(caplog.messages) == 1


WRITER, OTHER = b"w" * 16, b"x" * 16
HUGE = (2**63, 2**64 - 1)


def claim(epoch: int, writer_id: bytes = WRITER) -> m.ChangeDirectory:
    return to_claim(epoch, writer_id)


REFUSALS: dict[str, tuple[m.Message, ErrorCode, int]] = {
    "a size below": (m.Append("o", SIZE - 1, DIGEST, b"x"), ErrorCode.SIZE_MISMATCH, SIZE),
    "a size above": (m.Append("o", SIZE + 1, DIGEST, b"x"), ErrorCode.SIZE_MISMATCH, SIZE),
    "size 0": (m.Append("o", 0, 0, b"x"), ErrorCode.SIZE_MISMATCH, SIZE),
    **{f"size {n}": (m.Append("o", n, DIGEST, b"x"), ErrorCode.SIZE_MISMATCH, SIZE) for n in HUGE},
    "a digest of other bytes": (m.Append("o", SIZE, DIGEST ^ 1, b"x"), ErrorCode.DIGEST_MISMATCH, DIGEST),
    "a first size that is not 0": (m.Append("new", 1, 0, b"x"), ErrorCode.SIZE_MISMATCH, 0),
    "an epoch below": (claim(4), ErrorCode.FENCED, 5),
    "the epoch of another writer": (claim(5, OTHER), ErrorCode.FENCED, 5),
    "no epoch": (claim(0), ErrorCode.FENCED, 5),
    "an epoch too far above": (claim(5 + 2**20 + 1), ErrorCode.FENCED, 5),
    **{f"epoch {n}": (claim(n), ErrorCode.FENCED, 5) for n in HUGE},
    "an offset past the end": (m.Get("o", SIZE + 1, 10), ErrorCode.PAST_END, SIZE),
    **{f"offset {n}": (m.Get("o", n, 2**32 - 1, 2**32 - 1), ErrorCode.PAST_END, SIZE) for n in HUGE},
    "a digest past the end": (m.Stat("o", SIZE + 1), ErrorCode.PAST_END, SIZE),
    f"a digest at {2**63}": (m.Stat("o", 2**63), ErrorCode.PAST_END, SIZE),
    "an object that is not there": (m.Get("missing", 0, 1), ErrorCode.NOT_FOUND, 0),
    "a new copy without a store": (m.RepairChunk("o", 0, 1, 0, 0, 0, False, b"x"), ErrorCode.NOT_READY, 0),
    **{
        f"a new copy of {n} bytes": (m.RepairChunk("o", n, n, n, n, n, True, b"x"), ErrorCode.NOT_READY, 0)
        for n in HUGE
    },
    "an answer for a question": (m.DurabilityAck("o", 1, 1), ErrorCode.UNKNOWN_OPCODE, 0),
    "an error for a question": (m.Error(1), ErrorCode.UNKNOWN_OPCODE, 0),
}


@pytest.mark.parametrize("cell", REFUSALS)
def test_what_is_wrong_is_refused_and_the_session_continues(
    server: embedded.EmbeddedServer, cell: str, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-3, P-4, P-8
    request, code, actual = REFUSALS[cell]
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        answer = wire.ask(request)
        assert isinstance(answer, m.Error), answer
        assert (answer.code, answer.actual) == (code, actual)
        assert answer.code not in CLOSING
        assert answer.message.isprintable()
        assert wire.ask(m.Stat("o")).info.synced == SIZE
    assert caplog.messages == []


@pytest.mark.parametrize("opcode", sorted({0, 12, 77, 127, 128, 135, 140, 254} - set(m.Opcode)))
def test_an_unknown_opcode_is_refused_and_the_session_continues(
    server: embedded.EmbeddedServer, opcode: int
) -> None:
    with Wire(server.address) as wire:
        wire.sock.sendall(encode_frame(Frame(opcode, 900, b"\xff" * 40, b"\0\n\x1b")))
        assert wire.answer(900).code == ErrorCode.UNKNOWN_OPCODE
        assert wire.ask(m.Ping(b"x")) == m.Pong(b"x")


def test_an_append_without_any_claim_of_a_claimed_directory_is_refused(
    server: embedded.EmbeddedServer,
) -> None:
    # EVIDENCE-OF: P-4
    with Wire(server.address) as wire:
        wire.ask(m.ChangeDirectory("dir"))
        answer = wire.ask(m.Append("o", SIZE, DIGEST, b"x"))
        assert (answer.code, answer.actual) == (ErrorCode.NOT_CLAIMED, 5)
        assert wire.ask(m.Ping(b"x")) == m.Pong(b"x")


APPEND_FRAME = encode_frame(m.encode(m.Append("o", SIZE, DIGEST, b"more"), 3))


@pytest.mark.parametrize("cut", range(1, len(APPEND_FRAME)))
def test_an_append_cut_short_by_the_end_has_no_effect(server: embedded.EmbeddedServer, cut: int) -> None:
    # EVIDENCE-OF: P-8
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        wire.sock.sendall(APPEND_FRAME[:cut])
        wire.sock.shutdown(socket.SHUT_WR)
        assert wire.ends()
        assert wire.unasked == []


@pytest.mark.parametrize(
    "content", [encode_frame(m.encode(m.Quit(), 5)), APPEND_FRAME, b"\0\0\0\2do", b"\r\nQUIT\r\n"]
)
def test_content_is_never_read_as_a_request(server: embedded.EmbeddedServer, content: bytes) -> None:
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        assert wire.ask(m.Ping(content)) == m.Pong(content)
        assert wire.ask(m.Ping(b"still here")) == m.Pong(b"still here")
        assert wire.unasked == []


@pytest.mark.parametrize("rest", [b"GET", b"\0", b"\xd0\x5e\x02" + bytes(29), raw_header(digest=1)])
def test_what_follows_a_whole_request_is_judged_on_its_own(
    server: embedded.EmbeddedServer, rest: bytes
) -> None:
    with Wire(server.address) as wire:
        wire.sock.sendall(encode_frame(m.encode(m.Ping(b"whole"), 50)) + rest)
        assert wire.answer(50) == m.Pong(b"whole")
        assert error_of(wire).code in CLOSING


@pytest.mark.parametrize("ending", ["QUIT", "half-close"])
def test_the_end_in_the_middle_of_appends_loses_none_that_was_accepted(tmp_path: Path, ending: str) -> None:
    # EVIDENCE-OF: P-1
    content = b""
    with embedded.start(tmp_path / "data") as fresh:
        with Wire(fresh.address) as wire:
            wire.claim("dir")
            for number in range(200):
                wire.append("o", content, b"%d," % number)
                content += b"%d," % number
            if ending == "QUIT":
                wire.send(m.Quit())
            wire.sock.shutdown(socket.SHUT_WR)
            assert wire.ends()
            synced = max(one.synced for one in wire.unasked if isinstance(one, m.DurabilityAck))
            assert synced == len(content)
            assert (wire.unasked[-1] == m.Bye()) is (ending == "QUIT")
        with Wire(fresh.address) as reader:
            reader.ask(m.ChangeDirectory("dir"))
            assert reader.ask(m.Get("o", 0, 10_000)).payload == content


def test_one_byte_per_packet_is_a_whole_append(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as fresh, Wire(fresh.address) as wire:
        wire.claim("dir")
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode_frame(m.encode(m.Append("o", 0, 0, b"slow"), 99)):
            wire.sock.sendall(bytes((byte,)))
        wire.wait_synced("o", 4)
        assert wire.ask(m.Get("o", 0, 100)).payload == b"slow"


def test_a_record_whose_addresses_hold_control_characters_is_refused(
    server: embedded.EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its addresses are written to the log, where a line of their own would look like the server's."""
    with Wire(server.address) as wire:
        server_id = wire.welcome.server_id
        wire.sock.sendall(encode_frame(m.encode(m.Configure(record_at(server_id, "h:1\n2026 fine")), 5)))
        error = error_of(wire)
    assert error.code == ErrorCode.BAD_FRAME
    assert len(caplog.messages) == 1


def record_at(server_id: bytes, address: str) -> bytes:
    """A store record that our own encoder would not make."""
    body = struct.pack(">2sBB16sQBB", b"\xd0\x53", 1, 0, b"s" * 16, 1, 1, 1)
    body += struct.pack(">16sBB", server_id, 1, len(address)) + address.encode()
    return body + digest64(body).to_bytes(8, "big")


# --- Peers that are slow, too many, or go on sending -------------------------------------------------------


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


def test_before_hello_only_hello_and_quit_are_answered(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address, greet=False) as wire:
        for request in (m.Ping(b"x"), m.List(), m.ChangeDirectory("dir"), m.Configure(b""), m.Stat("o")):
            assert wire.ask(request).code == ErrorCode.NOT_READY
        assert wire.ask(m.Quit()) == m.Bye()
        assert wire.ends()
    with Wire(server.address) as wire:
        assert wire.ask(m.Hello()).code == ErrorCode.BAD_FRAME


def test_ten_thousand_pipelined_requests_are_answered_in_order(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        frames = [encode_frame(m.encode(m.Ping(b"%d" % n), n)) for n in range(1000, 11_000)]
        wire.sock.sendall(b"".join(frames))
        for number in range(1000, 11_000):
            frame = wire.receive_frame()
            assert (frame.request_id, frame.payload) == (number, b"%d" % number)


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
    monkeypatch.setattr("dos_server.limits.connections_max", 1)
    with Wire(server.address), Wire(server.address, greet=False) as wire:
        error = wire.receive()
        assert isinstance(error, m.Error)
        assert error.code == ErrorCode.BUSY
        assert wire.ends()


def test_peers_that_do_not_greet_give_way_to_new_ones(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_server.limits.connections_max", 5)
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

    async def ping() -> None:
        async with open_connection(server.url.removeprefix("dos://")) as connection:
            await connection.ping()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping)
            await trio.to_thread.run_sync(refused.wait)
            monkeypatch.setattr("dos_server.limits.connections_max", 5)

    with Wire(server.address):  # first: the server may not have seen yet that an earlier connection has ended
        monkeypatch.setattr("dos_server.limits.connections_max", 1)
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
