"""The table of bad input, its rows about the wire, one test a cell, for version 1.

A real server on loopback. Each cell asserts the answer to the peer and whether it may continue; around each,
the data directory must be the same to the byte, and the log hold as many lines as it should, nothing raw in
them.
"""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CLOSING, ErrorCode
from dos_protocol.frames import Frame, encode_frame
from dos_server import embedded
from tests.dos_server.test_bad_input import CONTENT, raw_header
from tests.support.data_tree import undisturbed
from tests.support.wire import Wire

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


LENGTHS = {
    "meta, one too many": {"meta_bytes": 65_537},
    "meta, 2^31": {"meta_bytes": 2**31},
    "meta, -1": {"meta_bytes": 2**32 - 1},
    "payload, one too many": {"payload_bytes": 1_048_577},
    "payload, 2^31": {"payload_bytes": 2**31},
    "payload, -1": {"payload_bytes": 2**32 - 1},
    "both at their limits and one": {"meta_bytes": 65_536, "payload_bytes": 1_048_577},
}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_beyond_the_limit_is_refused_before_anything_follows(
    server: embedded.EmbeddedServer, length: str, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-9
    with Wire(server.address) as wire:
        wire.sock.sendall(raw_header(opcode=3, **LENGTHS[length]))
        assert error_of(wire).code == ErrorCode.TOO_LARGE
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
    "QUIT with a payload": (10, b"", b"now"),
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
    return m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=writer_id)


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
    from dos_protocol.digests import digest64

    body = struct.pack(">2sBB16sQBB", b"\xd0\x53", 1, 0, b"s" * 16, 1, 1, 1)
    body += struct.pack(">16sBB", server_id, 1, len(address)) + address.encode()
    return body + digest64(body).to_bytes(8, "big")
