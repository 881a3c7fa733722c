"""What peers of version 0 may send: each piece of bad input is refused without an effect, and others notice
nothing. The rows are those of the bad-input table that speak of names, numbers, verbs and lines: its requests
are text.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dos_server import embedded
from tests.dos_protocol.test_rules import HOSTILE
from tests.dos_server.test_bad_names import PLANTS, Plant, plant_name
from tests.dos_server.version0.filled_server import CONTENT, PATIENT, connect, fill
from tests.dos_server.version0.frames import framed
from tests.support.data_tree import tree, undisturbed
from tests.support.v0_client import LostError, RefusedError, V0Connection

SECRET = b"nothing of this server's"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(data) as running:
        fill(running)
        yield running


@pytest.fixture(autouse=True)
def _nothing_changed(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """P-8 and more: after each test the file and the list are what they were, to the byte on the disk, others
    are served, and nothing raw is in the log."""
    if "server" not in request.fixturenames:
        yield
    else:
        server, data = request.getfixturevalue("server"), request.getfixturevalue("data")
        with undisturbed(data, caplog):
            yield
        with connect(server) as tool:
            assert tool.files() == {"o": (len(CONTENT), False)}
            assert tool.get("o") == CONTENT


NUMBERS = [b"-1", b"+5", b"0x10", b"1e3", b"007", b"00", b" 5", b"5 ", b"5\n", b"", b"5.0", b"1_000"]
NUMBERS += [b"9223372036854775808", b"18446744073709551616", b"1" + b"0" * 30, b"NaN", b"\xd9\xa3", b"\x00"]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_no_number_is_refused_everywhere(server: embedded.EmbeddedServer, number: bytes) -> None:
    # EVIDENCE-OF: P-8
    with connect(server) as tool:
        with pytest.raises(RefusedError, match=r"not a number|is ASCII") as caught:
            tool.ask(b"ao\t" + number)
        assert str(caught.value).isprintable()
        assert tool.closed_by_server()
    for body in (b"go\t" + number + b"\t5", b"go\t0\t" + number):
        if body == b"go\t-1\t5":
            continue  # a negative offset counts as 0
        with connect(server) as tool:
            tool.send_frame(body)
            assert tool.closed_by_server(), body


def test_an_append_at_any_other_size_is_refused(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-3, P-8
    for offset in (0, len(CONTENT) - 1, len(CONTENT) + 1, 2**63 - 1):
        with connect(server) as tool:
            with pytest.raises(RefusedError, match=f"o has {len(CONTENT)} bytes, not {offset}"):
                tool.append("o", offset)
            assert tool.closed_by_server()


NAMES = [
    *HOSTILE,
    *("a/b", "o/", "/o", "../dir/o", "x" * 200, "o/../o", "a/" * 120, "/" * 240),
    *("caf\u00e9", "cafe\u0301", "o\u202e", "\x7f", "\r", " o", "o ", "o.\t", "nul\0", "CON\0"),
    *("$HOME", "`id`", "o;ls", "*", ".meta", ".marks", ".claim", ".repair.o.1"),
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_refused_by_every_request(server: embedded.EmbeddedServer, name: str) -> None:
    # EVIDENCE-OF: P-8
    data = name.encode()
    with connect(server) as tool:
        for body in (b"u" + data, b"d" + data, b"s" + data):
            if len(body) <= 255:
                with pytest.raises(RefusedError) as caught:
                    tool.ask(body)
                assert str(caught.value).isprintable(), "nothing is echoed raw"
        assert tool.files() == {"o": (len(CONTENT), False)}, "usable, and still in its directory"
        with pytest.raises(RefusedError):
            tool.ask((b"a" + data)[:240] + b"\t0")
        assert tool.closed_by_server()
    with connect(server) as tool:
        tool.send_frame((b"g" + data)[:240] + b"\t0\t0")
        assert tool.closed_by_server()


def test_names_that_are_odd_but_good_are_files_of_their_own(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as server:
        names = ["CON", "con", "Con", "a.", "a..b", "1", "x" * 128]
        for name in names:
            with connect(server) as tool:
                tool.append(name, 0)
                tool.send(name.encode())
                assert tool.finish() == [(len(name), len(name))]
        with connect(server) as tool:
            assert list(tool.files()) == sorted(names)
            assert [tool.get(name).decode() for name in names] == names


BODIES = [
    b"l ",
    b"lo",
    b"l\t",
    b"u",
    b"ua\tb",
    b"d",
    b"do\t",
    b"so\t0",
    b"s",
    b"u\xff",
    b"d\xc3\xa9",
    b"u\0",
    b"lo\n",
]


@pytest.mark.parametrize("body", BODIES)
def test_wrong_arguments_are_refused_and_the_connection_stays_usable(
    server: embedded.EmbeddedServer, body: bytes
) -> None:
    with connect(server) as tool:
        with pytest.raises(RefusedError) as caught:
            tool.ask(body)
        assert str(caught.value).isprintable()
        assert tool.sync("o") == len(CONTENT)


@pytest.mark.parametrize("body", [b"ao", b"ao\t", b"ao\t0\t0", b"a", b"go", b"go\t0", b"go\t0\t0\t0", b"g"])
def test_wrong_arguments_of_append_and_get_end_the_connection(
    server: embedded.EmbeddedServer, body: bytes
) -> None:
    with connect(server) as tool:
        tool.send_frame(body)
        if body.startswith(b"a"):
            assert tool.receive_frame().startswith(b"ERROR: ")
        assert tool.closed_by_server()


def test_every_other_command_is_unknown_and_named_in_print(server: embedded.EmbeddedServer) -> None:
    with connect(server) as tool:
        for command in range(256):
            if chr(command) in "ualgds":
                continue
            with pytest.raises(RefusedError, match="unknown command") as caught:
                tool.ask(bytes([command]) + b"o\t0\t0")
            assert str(caught.value).isprintable(), command
        for word in (b"QUIT", b"LIST", b"HELLO", b"A", b"\r\n"):
            with pytest.raises(RefusedError, match="unknown command"):
                tool.ask(word)


def test_a_request_cut_short_has_no_effect(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-8
    request = framed(b"do")
    for cut in range(1, len(request)):
        with connect(server) as tool:
            tool.send(request[:cut])
            tool.sock.shutdown(socket.SHUT_WR)
            assert tool.closed_by_server()


def test_ten_thousand_requests_at_once_are_answered_in_order(server: embedded.EmbeddedServer) -> None:
    # EVIDENCE-OF: P-9
    with connect(server) as tool:
        tool.send(framed(b"l", b"go\t0\t4", b"x", b"so", b"go\t99\t0") * 2_000)
        tool.sock.shutdown(socket.SHUT_WR)
        listed, synced = b"o\t%d\tno\n" % len(CONTENT), b"%d\t%d" % (len(CONTENT), len(CONTENT))
        for _ in range(2_000):
            assert tool.receive_frame() == listed
            assert tool.receive_frame() == CONTENT[:4]
            assert tool.receive_frame() == b'ERROR: unknown command "x"'
            assert tool.receive_frame() == synced
            assert tool.receive_frame() == b""
        assert tool.closed_by_server()


def test_time_outs_end_silent_and_half_sent_requests_but_never_idle_or_streaming_connections(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dos_server.connection.hello_seconds_max", 0.3)
    monkeypatch.setattr("dos_server.connection.frame_seconds_max", 0.3)
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(V0Connection(server.address, reply_seconds=PATIENT))
        slow = stack.enter_context(V0Connection(server.address, reply_seconds=PATIENT))
        begun, idle = stack.enter_context(connect(server)), stack.enter_context(connect(server))
        stream = stack.enter_context(connect(server))
        slow.send(b"\0\0\0")
        begun.send(b"\0\0\0\x02s")
        stream.append("o", len(CONTENT))
        assert silent.closed_by_server()
        assert slow.closed_by_server()
        assert begun.closed_by_server()
        assert idle.sync("o") == len(CONTENT)
        assert stream.finish() == [(len(CONTENT), len(CONTENT))]


@pytest.mark.parametrize("start", [b"\0", b"\0\0\0\x05udi", b"\xd0\x5e\x01\x01"])
def test_the_first_request_must_be_whole_in_time_whatever_the_version(
    server: embedded.EmbeddedServer, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr("dos_server.connection.hello_seconds_max", 0.3)
    with V0Connection(server.address, reply_seconds=PATIENT / 2) as tool:  # a begun frame has 30 s
        tool.send(start)
        assert tool.closed_by_server()


def peer_of(sock: Any) -> Any:
    """None: of another test, whose end the server has not noticed yet."""
    try:
        return sock.getpeername()
    except OSError:
        return None


def test_a_client_whose_machine_is_gone_does_not_keep_its_lock_for_hours(
    server: embedded.EmbeddedServer,
) -> None:
    with connect(server) as tool:
        sockets = [one._sock for one in server._opened.server._connections.values()]
        option = next(one for one in sockets if peer_of(one) == tool.sock.getsockname()).getsockopt
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        seconds = option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        seconds += option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * option(
            socket.IPPROTO_TCP, socket.TCP_KEEPCNT
        )
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert seconds <= 60


BYTES = {
    "NUL": b"\0",
    "CR": b"\r",
    "LF": b"\n",
    "CR LF": b"\r\n",
    "no UTF-8": b"\xc3\x28",
    "0x80": b"\x80",
    "0xff": b"\xff",
    "escape": b"\x1b[2J",
    "DEL": b"\x7f",
    "space": b" ",
}


@pytest.mark.parametrize("place", ["before the name", "in the name", "behind the name", "alone"])
@pytest.mark.parametrize("what", BYTES)
@pytest.mark.parametrize("command", [b"u", b"d", b"s"])
def test_bytes_that_are_no_text_are_refused_and_not_echoed(
    server: embedded.EmbeddedServer, command: bytes, what: str, place: str
) -> None:
    # EVIDENCE-OF: P-8
    raw = BYTES[what]
    name = {"before the name": raw + b"o", "in the name": b"o" + raw + b"o", "behind the name": b"o" + raw}
    with connect(server) as tool:
        with pytest.raises(RefusedError) as caught:
            tool.ask(command + name.get(place, raw))
        assert str(caught.value).isprintable()
        assert str(caught.value).isascii()
        assert tool.sync("o") == len(CONTENT), "usable, and still in its directory"


@pytest.mark.parametrize("what", BYTES)
def test_the_same_bytes_end_append_and_get(
    server: embedded.EmbeddedServer, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-8
    with connect(server) as tool:
        with pytest.raises(RefusedError) as caught:
            tool.ask(b"ao" + BYTES[what] + b"\t0")
        assert str(caught.value).isprintable()
        assert tool.closed_by_server()
    with connect(server) as tool:
        tool.send_frame(b"go" + BYTES[what] + b"\t0\t0")
        assert tool.closed_by_server()
    assert sum("closed" in line for line in caplog.messages) == 1, "what the peer of `g` is not told"


@pytest.mark.parametrize(
    ("count", "greet"),
    [*((one, True) for one in (256, 2**24, 2**31, 2**32 - 1)), (256, False), (2**24 - 1, False)],
)
def test_a_length_beyond_255_is_refused_with_one_line_in_the_log(
    server: embedded.EmbeddedServer, count: int, greet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-9
    with V0Connection(server.address, reply_seconds=PATIENT) as tool:
        if greet:
            tool.use("dir")
        tool.send(count.to_bytes(4, "big") + b"A" * 1_000)
        assert tool.receive_frame() == b"ERROR: a request has at most 255 bytes, not %d" % count
        assert tool.closed_by_server()
    (line,) = caplog.messages
    assert f"not {count}; closed" in line


def test_a_request_that_is_longer_than_its_length_is_cut_there(server: embedded.EmbeddedServer) -> None:
    with connect(server) as tool:
        tool.send(b"\0\0\0\2so-and-so")  # what follows is "-and", a length of 0x2d616e64
        assert tool.receive_frame() == b"%d\t%d" % (len(CONTENT), len(CONTENT))
        assert tool.receive_frame().startswith(b"ERROR: a request has at most 255 bytes")
        assert tool.closed_by_server()


@pytest.mark.parametrize(
    "content",
    [
        bytes(4),
        framed(b"do"),
        framed(b"l"),
        b"\xd0\x5e\x01\x0a" + bytes(28),
        b"ERROR: not me",
        b"\r\nquit\r\n",
    ],
)
def test_what_is_streamed_is_content_whatever_it_looks_like(tmp_path: Path, content: bytes) -> None:
    with embedded.start(tmp_path / "data") as fresh:
        with connect(fresh) as tool:
            tool.append("new", 0)
            tool.send(content)
            assert tool.finish() == [(len(content), len(content))]
        with connect(fresh) as tool:
            assert tool.get("new") == content


def test_one_byte_per_packet_is_a_whole_session(tmp_path: Path) -> None:
    with (
        embedded.start(tmp_path / "data") as fresh,
        V0Connection(fresh.address, reply_seconds=PATIENT) as tool,
    ):
        tool.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(b"udir", b"aslow\t0"):
            tool.send(bytes((byte,)))
        assert [tool.receive_frame(), tool.receive_frame()] == [b"ok", b"ok"]
        for byte in b"some content":
            tool.send(bytes((byte,)))
        assert tool.finish()[-1] == (12, 12)


@pytest.mark.parametrize("plant", PLANTS, ids=plant_name)
@pytest.mark.parametrize("name", ["o", "planted"])
def test_a_planted_file_is_never_followed(tmp_path: Path, plant: Plant, name: str) -> None:
    # EVIDENCE-OF: P-2
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    with embedded.start(tmp_path / "data") as server:
        fill(server)
    place = tmp_path / "data" / "d" / "dir" / name
    place.unlink(missing_ok=True)
    plant(place, outside)
    planted = tree(tmp_path / "data")[f"d/dir/{name}"]
    with embedded.start(tmp_path / "data") as server:
        for offset in (0, len(CONTENT)):
            with connect(server) as tool, pytest.raises(RefusedError, match="damaged"):
                tool.append(name, offset)
        with connect(server) as tool, pytest.raises(LostError):
            tool.get(name)
        with connect(server) as tool:
            with pytest.raises(RefusedError, match="damaged"):
                tool.sync(name)
            assert tool.files()[name] == (0, False)
        assert tree(tmp_path / "data")[f"d/dir/{name}"] == planted
        if not stat.S_ISDIR(place.lstat().st_mode):
            with connect(server) as tool:
                tool.delete(name)
            assert not os.path.lexists(place)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"file": SECRET}
