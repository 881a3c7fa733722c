"""The table of bad input for version 0: the cells that `test_v0_bad_input` has not, one test a cell.

The rows that speak of lines, verbs and spaces are about the text of its requests. Around each cell the data
directory must be the same to the byte, and nothing raw may be in the replies and the log.
"""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_server import embedded
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


@pytest.fixture
def _nothing_written(
    server: embedded.EmbeddedServer, data: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    with undisturbed(data, caplog):
        yield
    with connect(server) as tool:
        assert tool.files() == {"o": (len(CONTENT), False)}
        assert tool.get("o") == CONTENT


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


@pytest.mark.usefixtures("_nothing_written")
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


@pytest.mark.usefixtures("_nothing_written")
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


@pytest.mark.usefixtures("_nothing_written")
@pytest.mark.parametrize("count", [256, 5_000, 2**24, 2**31, 2**32 - 1])
def test_a_length_beyond_255_is_refused_with_one_line_in_the_log(
    server: embedded.EmbeddedServer, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-9
    with connect(server) as tool:
        tool.send(count.to_bytes(4, "big") + b"A" * 1_000)
        assert tool.receive_frame() == b"ERROR: a request has at most 255 bytes, not %d" % count
        assert tool.closed_by_server()
    (line,) = caplog.messages
    assert f"not {count}; closed" in line


@pytest.mark.usefixtures("_nothing_written")
@pytest.mark.parametrize("name", [b"a/" * 120, b"/" * 240, b"o ", b"o.\t", b"CON\0", b".meta", b"o/../o"])
def test_names_that_are_deep_or_end_oddly_are_refused(server: embedded.EmbeddedServer, name: bytes) -> None:
    with connect(server) as tool:
        for command in (b"u", b"d", b"s"):
            with pytest.raises(RefusedError) as caught:
                tool.ask(command + name)
            assert str(caught.value).isprintable()
        assert tool.files() == {"o": (len(CONTENT), False)}


@pytest.mark.usefixtures("_nothing_written")
def test_bytes_after_a_request_are_the_next_request(server: embedded.EmbeddedServer) -> None:
    with connect(server) as tool:
        tool.send(b"\0\0\0\1l" + b"\0\0\0\2so" + framed(b"sox", b"so"))
        assert tool.receive_frame() == b"o\t%d\tno\n" % len(CONTENT)
        assert tool.receive_frame() == b"%d\t%d" % (len(CONTENT), len(CONTENT))
        assert tool.receive_frame() == b"ERROR: no file ox in dir"
        assert tool.receive_frame() == b"%d\t%d" % (len(CONTENT), len(CONTENT))


@pytest.mark.usefixtures("_nothing_written")
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


def test_an_end_in_the_middle_of_a_stream_loses_nothing_that_came(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1
    content = bytes(range(256)) * 2_000
    with embedded.start(tmp_path / "data") as fresh:
        with connect(fresh) as tool:
            tool.append("new", 0)
            tool.send(content)
            assert tool.finish()[-1] == (len(content), len(content))
        with connect(fresh) as tool:
            assert tool.get("new") == content


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
