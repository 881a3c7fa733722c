"""protocol.md is enough to write a client from: one that was, against a real server process."""

import ast
import random
import sys
import threading
from pathlib import Path

import pytest

from tests.support import plain_client
from tests.support.plain_client import BLOCK, PlainClient, RefusedByServerError, fold
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]

WRITER, OTHER = b"w" * 16, b"o" * 16
CONTENT = random.Random(7).randbytes(5 * BLOCK + 4_321)
SIZE_MISMATCH, FENCED, NOT_FOUND = 11, 13, 10


def test_it_knows_nothing_of_ours() -> None:
    tree = ast.parse(Path(plain_client.__file__).read_text(encoding="utf-8"))
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names | {"xxhash"}
    assert "socket" in imported


def test_its_digest_is_that_of_the_vectors() -> None:
    content = bytes(31 * i % 251 for i in range(3 * BLOCK))
    assert [f"{fold(content[:size]):016x}" for size in (0, 1, 100, BLOCK, BLOCK + 1, 3 * BLOCK)] == [
        "0000000000000000", "c44bdff4074eecdb", "1efbaa652af7dfb7", "1fbf280810208f17", "5ef9a8e004304192",
        "c406d95cc3c8da28",
    ]  # fmt: skip


@pytest.mark.process
def test_a_life_of_objects(one_server: ServerProcess) -> None:
    # EVIDENCE-OF: P-2, P-3, P-4
    with PlainClient(one_server.address) as client:
        assert client.server_id.hex() == one_server.server_id
        assert client.claim("demo", 1, WRITER) == (1, {})
        size = 0
        for count in (10, BLOCK - 10, 1, 3 * BLOCK, 4_320, BLOCK):
            client.append("object", size, fold(CONTENT[:size]), CONTENT[size : size + count])
            size += count
        client.wait_synced("object", len(CONTENT))
        for name in ("a1", "a2", "a3", "a4", "b"):
            client.append(name, 0, 0, name.encode())
            client.wait_synced(name, 2 if name[1:] else 1)
        assert client.list_names("a") == ["a1", "a2", "a3", "a4"]
        assert client.list_names() == ["a1", "a2", "a3", "a4", "b", "object"]
        assert client.read("object") == CONTENT
        assert client.read("object", 5 * BLOCK) == CONTENT[5 * BLOCK :]
        entry, digest = client.stat("object", 100_000)
        assert (entry.synced, entry.digest, entry.marks) == (len(CONTENT), fold(CONTENT), 0)
        assert digest == fold(CONTENT[:100_000])
        assert client.ping(b"still there") == b"still there"
        client.quit()
    one_server.restart()
    with PlainClient(one_server.address) as client:
        epoch, entries = client.open("demo")
        assert (epoch, entries["object"].synced) == (1, len(CONTENT))
        epoch, entries = client.claim("demo", epoch + 1, OTHER)
        grown = go_on(client, "object", entries["object"].synced, b"and more")
        assert client.read("object", len(CONTENT)) == b"and more"
        assert client.stat("object")[0].digest == fold(CONTENT + b"and more")
        client.append("object", 5, fold(CONTENT[:5]), b"late")
        with pytest.raises(RefusedByServerError) as caught:
            client.ping(b"")
        assert (caught.value.code, caught.value.actual) == (SIZE_MISMATCH, grown)
        client.delete("object")
        with pytest.raises(RefusedByServerError) as caught:
            client.get("object", 0, 10)
        assert caught.value.code == NOT_FOUND
        client.quit()


def go_on(client: PlainClient, name: str, size: int, data: bytes) -> int:
    """Append to an object of another writer: the whole blocks are known by their digest, the rest is
    read."""
    base = size - size % BLOCK
    _, blocks_digest = client.stat(name, base)
    digest = fold(client.read(name, base), blocks_digest)
    client.append(name, size, digest, data)
    client.wait_synced(name, size + len(data))
    return size + len(data)


@pytest.mark.process
def test_a_follower_and_a_writer_that_is_fenced(one_server: ServerProcess) -> None:
    # EVIDENCE-OF: P-4
    got: list[bytes] = []

    def follow() -> None:
        with PlainClient(one_server.address) as reader:
            reader.open("demo")
            while (size := sum(map(len, got))) < 9:
                got.append(reader.get("log", size, 1_000, wait_ms=60_000))

    with PlainClient(one_server.address) as writer, PlainClient(one_server.address) as taker:
        writer.claim("demo", 1, WRITER)
        writer.append("log", 0, 0, b"one, ")
        writer.wait_synced("log", 5)
        follower = threading.Thread(target=follow)
        follower.start()
        taker.claim("demo", 2, OTHER)
        taker.append("log", 5, fold(b"one, "), b"two!")
        taker.wait_synced("log", 9)
        follower.join(60)
        assert b"".join(got) == b"one, two!"
        writer.append("log", 5, fold(b"one, "), b"mine")
        with pytest.raises(RefusedByServerError) as caught:
            writer.wait_synced("log", 9)
        assert (caught.value.code, caught.value.actual) == (FENCED, 2)
