"""The conversations of `recorded.txt`, replayed against a real server: whole sends, and byte by byte."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dos_server import embedded

STORIES = Path(__file__).parent / "recorded.txt"


class Line(NamedTuple):
    """`data` None: that side sends no more."""

    number: int
    who: str
    connection: str
    data: bytes | None


def stories() -> list[tuple[str, list[Line]]]:
    found: list[tuple[str, list[Line]]] = []
    for number, line in enumerate(STORIES.read_text(encoding="ascii").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if line.startswith("=="):
            found.append((line[2:].strip(), []))
        elif text:
            who, _, rest = text.partition(" ")
            data = None if rest == "end" else bytes.fromhex(rest)
            found[-1][1].append(Line(number, who[0], who[1:], data))
    return found


@pytest.mark.parametrize("pieces", ["whole", "byte by byte"])
def test_the_recorded_conversations_go_as_they_are_written(tmp_path: Path, pieces: str) -> None:
    with embedded.start(tmp_path / "data") as server:
        for title, lines in stories():
            with contextlib.ExitStack() as stack:
                sockets: dict[str, socket.socket] = {}
                for line in lines:
                    sock = sockets.get(line.connection)
                    if sock is None:
                        sock = sockets[line.connection] = stack.enter_context(connect(server.address))
                    play(sock, line, title, one_by_one=pieces != "whole")


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def play(sock: socket.socket, line: Line, title: str, *, one_by_one: bool) -> None:
    where = f"{title!r}, line {line.number}"
    if line.who == "C":
        if line.data is None:
            sock.shutdown(socket.SHUT_WR)
        for piece in cut(line.data or b"", one_by_one=one_by_one):
            sock.sendall(piece)
    else:
        wanted = line.data
        got = receive(sock, 1 if wanted is None else len(wanted))
        assert got == (wanted or b""), where


def cut(data: bytes, *, one_by_one: bool) -> Iterator[bytes]:
    if one_by_one:
        yield from (data[index : index + 1] for index in range(len(data)))
    elif data:
        yield data


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            break
        data += part
    return data
