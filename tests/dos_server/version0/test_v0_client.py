"""An unmodified client of the original against a real `dos serve`: its whole job, with kills in between.

The client is `tests/support/v0_client.py`, which knows nothing of this project.
"""

import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server import embedded
from tests.support.servers import ServerProcess
from tests.support.v0_client import RefusedError, V0Connection, V0Replicator
from tests.support.wire import Wire

pytestmark = pytest.mark.process

PATIENT = 30.0
"""Seconds for a reply where not the client's habits are tested, on a machine that may be busy."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("v0") / "server") as running:
        yield running


def connect(server: ServerProcess, directory: str = "") -> V0Connection:
    connection = V0Connection(server.address, reply_seconds=PATIENT)
    if directory:
        connection.use(directory)
    return connection


def put(server: ServerProcess, directory: str, name: str, content: bytes) -> None:
    with connect(server, directory) as connection:
        connection.append(name, 0)
        connection.send(content)
        assert connection.finish()[-1] == (len(content), len(content))


def test_a_tool_does_its_whole_job_on_one_connection(server: ServerProcess) -> None:
    content = random.Random(1).randbytes(300_000)
    put(server, "tool", "my_app-worker3.tcp-control", content)
    put(server, "tool", "empty", b"")
    with connect(server, "tool") as tool:
        assert tool.files() == {"empty": (0, False), "my_app-worker3.tcp-control": (300_000, False)}
        assert tool.get("my_app-worker3.tcp-control") == content
        assert tool.get("my_app-worker3.tcp-control", 299_990, 500) == content[-10:]
        assert tool.get("empty") == b""
        assert tool.sync("my_app-worker3.tcp-control") == 300_000
        tool.delete("empty")
        assert list(tool.files()) == ["my_app-worker3.tcp-control"]
        with pytest.raises(RefusedError, match="no file empty"):
            tool.delete("empty")
        with pytest.raises(RefusedError, match='unknown command "q"'):
            tool.ask(b"quit")
        tool.use("another")
        assert tool.files() == {}
        tool.send_frame(b"")
        assert tool.closed_by_server()


def test_kill_9_in_the_middle_of_a_stream_loses_nothing_that_a_status_told(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1, P-10
    rng = random.Random(2)
    with ServerProcess(tmp_path / "server") as server:
        client = V0Replicator(server.address, "app", "journal")
        client.write(rng.randbytes(3_000_000))  # written while there was no server: it catches up
        client.start()
        for sessions in (1, 2):
            client.wait_until(lambda one, sessions=sessions: one.sessions >= sessions)
            before = client.synced
            while client.synced == before:  # live, until another status has come
                client.write(rng.randbytes(20_000))
                client.wait_until(lambda one, before=before: one.synced > before, 0.02, demand=False)
            client.write(rng.randbytes(2_000_000))
            server.restart()
        client.wait_until(lambda one: one.sessions >= 3)
        client.stop()
        journal = bytes(client.journal)
        assert client.statuses[-1] == (len(journal), len(journal))
        assert all(synced <= written for written, synced in client.statuses)
        with connect(server, "app") as tool:
            assert tool.files() == {"journal": (len(journal), False)}
            assert tool.get("journal") == journal
        server.kill()
        server.restart()
        with connect(server, "app") as tool:
            assert tool.get("journal") == journal


def test_a_server_that_hangs_for_longer_than_two_seconds_is_left_and_found_again(
    server: ServerProcess,
) -> None:
    # EVIDENCE-OF: P-10
    client = V0Replicator(server.address, "hangs", "journal")
    client.start()
    client.wait_until(lambda one: one.sessions == 1)
    server.pause()
    client.write(random.Random(3).randbytes(20_000_000))  # more than the sockets hold: back-pressure
    client.wait_until(lambda one: bool(one.problems))
    server.resume()
    client.wait_until(lambda one: one.sessions >= 2)
    client.stop()
    with connect(server, "hangs") as tool:
        assert tool.get("journal") == bytes(client.journal)


def test_both_versions_read_and_append_to_the_same_objects(server: ServerProcess) -> None:
    # EVIDENCE-OF: P-2, P-3
    content = random.Random(4).randbytes(100_000)
    put(server, "both", "f", content)
    with Wire(server.address) as wire:
        opened = wire.ask(m.ChangeDirectory("both"))
        (info,) = opened.entries
        assert (info.name, info.synced, info.digest) == ("f", len(content), prefix_digest(content))
        assert wire.ask(m.Get("f", 0, 1 << 20)).payload == content
        wire.append("f", content, b"from version 1")
        wire.wait_synced("f", len(content) + 14)
        wire.append("g", b"", b"made by version 1")
        wire.wait_synced("g", 17)
    with connect(server, "both") as tool:
        assert tool.get("f", len(content)) == b"from version 1"
        assert tool.get("g") == b"made by version 1"
        tool.append("g", 17)
        with Wire(server.address) as wire:
            wire.ask(m.ChangeDirectory("both"))
            answer = wire.answer(wire.append("g", b"made by version 1", b"x"))
            assert answer.code == ErrorCode.BEING_APPENDED
        tool.send(b" and 0")
        assert tool.finish() == [(23, 23)]
    with Wire(server.address) as wire:
        wire.ask(m.ChangeDirectory("both"))
        assert wire.ask(m.Get("g", 0, 100)).payload == b"made by version 1 and 0"


def test_a_second_session_is_refused_and_the_lock_goes_with_its_session(server: ServerProcess) -> None:
    with connect(server, "locks") as first:
        first.append("f", 0)
        with connect(server, "locks") as second:
            assert second.files() == {"f": (0, True)}
            with pytest.raises(RefusedError, match="another session appends to f"):
                second.append("f", 0)
            assert second.closed_by_server()
        with connect(server, "locks2") as elsewhere:
            elsewhere.append("f", 0)
        first.send(b"abc")
        assert first.finish() == [(3, 3)]
    with connect(server, "locks") as third:
        third.append("f", 3)
        assert third.finish() == [(3, 3)]


def test_bytes_sent_before_a_reset_are_read_to_their_end(server: ServerProcess) -> None:
    """A client that closes with a reply or a status unread resets the connection.

    The server reads a first part, owes a status by then, cannot send it, and reads on.
    """
    content = random.Random(5).randbytes(60_000)
    with connect(server, "reset") as stream:
        stream.append("f", 0)
        server.pause()
        stream.send(content)
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
        time.sleep(1.1)  # a status falls due: time has to pass, nothing is waited for
        server.resume()
    with connect(server, "reset") as tool:
        while tool.files()["f"][1]:
            pass
        assert tool.get("f") == content


def test_where_it_is_switched_off_its_clients_are_notified_and_version_1_is_served(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", options=("--no-v0",)) as server:
        refused_as_off(server.address, "switched off", b"")


def test_where_a_token_is_asked_for_it_is_off(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data", token=b"secret") as server:
        refused_as_off(server.address, "requires a token", b"secret")


def refused_as_off(address: tuple[str, int], reason: str, token: bytes) -> None:
    with V0Connection(address, reply_seconds=PATIENT) as connection:
        with pytest.raises(RefusedError, match=reason):
            connection.use("dir")
        assert connection.closed_by_server()
    with Wire(address, hello=m.Hello(token=token)) as wire:
        assert wire.ask(m.List()).entries == ()
