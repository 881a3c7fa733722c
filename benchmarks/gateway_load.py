"""The client of `./run bench gateway`: the requests of a micro-batch without Spark, and trees of many files.

A connection is kept alive, as that of Hadoop's client; a body has a connection of its own, on the second
port.
"""

import http.client
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

import trio

from dos_client import Claim, Store, open_store
from dos_gateway.core.hadoop import parts_of
from dos_gateway.core.records import change_record
from dos_gateway.serving import CHAIN, ServedTree, directory_of, replay
from journal import inspect_whole
from journal.core.record import encode_v1

PREFIX: Final = "/webhdfs/v1"
TIMEOUT_S: Final = 120.0
PARTITIONS: Final = 2
"""Of the state: a micro-batch writes as many files of it."""
LOG_BYTES: Final = {"offsets": 1_200, "commits": 29}
STATE_BYTES: Final = 2_000
RETAINED: Final = 100
"""Spark keeps the files of so many micro-batches."""
FILES_IN_FLIGHT: Final = 64
FILLED_BYTES: Final = 100
_WRITER: Final = b"benchmark-writer"


class Answer(NamedTuple):
    code: int
    body: bytes
    location: str


class RefusedError(Exception):
    """A gateway refused a request. `java`: the simple name of the exception."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.code}: {answer.body[:200]!r}")
        self.java = str(json.loads(answer.body)["RemoteException"]["exception"]) if answer.body else ""


class KeptConnection:
    """Requests to one gateway, one after the other. A failed one ends the connection, and the next begins
    another. Raises OSError, http.client.HTTPException, RefusedError.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, method: str, op: str, path: str, *, there: bool = True, **query: object) -> Answer:
        """Send a request. there: False if a file must be missing for it."""
        answer = _asked(self._http, method, f"{PREFIX}{quote(path)}?{urlencode({'op': op, **query})}")
        if answer.code >= 400 and (there or answer.code != 404):
            raise RefusedError(answer)
        return answer

    def put(self, path: str, body: bytes | Iterable[bytes], size: int | None = None) -> None:
        """Both legs of a CREATE. size: that of a body in parts."""
        at = urlsplit(self.ask("PUT", "CREATE", path, overwrite="true").location)
        second = http.client.HTTPConnection("127.0.0.1", at.port, timeout=TIMEOUT_S)
        try:
            length = {} if size is None else {"Content-Length": str(size)}
            answer = _asked(second, "PUT", f"{at.path}?{at.query}", body, length)
        finally:
            second.close()
        if answer.code != 201:
            raise RefusedError(answer)

    def get_size(self, path: str) -> int:
        """Read a file and return its length."""
        self._http.request("GET", f"{PREFIX}{quote(path)}?op=OPEN")
        answer, size = self._http.getresponse(), 0
        if answer.status != 200:
            raise RefusedError(Answer(answer.status, answer.read(), ""))
        while part := answer.read(1 << 20):
            size += len(part)
        return size


def _asked(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), answer.getheader("Location", ""))
    except (OSError, http.client.HTTPException):
        connection.close()
        raise


# --- the requests of a micro-batch --------------------------------------------------------------------------


class MicroBatches:
    """What Spark asks for with each micro-batch of a query with HDFS-backed state: 44 requests, and four
    deletions of what is not retained.
    """

    def __init__(self, connection: KeptConnection, root: str) -> None:
        self._connection, self._root = connection, root
        for folder in self._folders():
            connection.ask("PUT", "MKDIRS", folder)

    def _folders(self) -> list[str]:
        return [f"{self._root}/{name}" for name in LOG_BYTES] + self._state()

    def _state(self) -> list[str]:
        return [f"{self._root}/state/0/{partition}" for partition in range(PARTITIONS)]

    def run(self, number: int) -> float:
        """Ask for one micro-batch, and return its seconds."""
        begun = time.perf_counter()
        self._log_file(f"{self._root}/offsets/{number}", LOG_BYTES["offsets"])
        for folder in self._state():
            self._log_file(f"{folder}/{number}.delta", STATE_BYTES)
        self._log_file(f"{self._root}/commits/{number}", LOG_BYTES["commits"])
        if (old := number - RETAINED) >= 0:
            names = [f"{folder}/{old}.delta" for folder in self._state()]
            for path in (*names, *(f"{self._root}/{name}/{old}" for name in LOG_BYTES)):
                self._connection.ask("DELETE", "DELETE", path, recursive="true")
        return time.perf_counter() - begun

    def _log_file(self, path: str, size: int) -> None:
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{uuid.uuid4()}.tmp"
        ask = self._connection.ask
        ask("GET", "GETFILESTATUS", path, there=False)
        ask("GET", "GETSERVERDEFAULTS", "/")
        ask("GET", "GETFILESTATUS", folder)
        ask("GET", "GETFILESTATUS", temporary, there=False)
        self._connection.put(temporary, os.urandom(size))
        ask("GET", "GETFILELINKSTATUS", temporary)
        ask("GET", "GETFILELINKSTATUS", path, there=False)
        ask("GET", "GETFILESTATUS", folder)
        ask("PUT", "RENAME", temporary, destination=path, renameoptions="NONE")


# --- trees of many files ------------------------------------------------------------------------------------


async def _body() -> AsyncIterator[bytes]:
    yield os.urandom(FILLED_BYTES)


def fill(url: str, name: str, folder: str, files: int) -> None:
    """Put files into a tree that no gateway serves, as a gateway puts them, without HTTP."""

    async def put(served: ServedTree, first: int) -> None:
        for number in range(first, files, FILES_IN_FLIGHT):
            path = parts_of(f"{folder}/{number:06}")
            await served.create(path, _body(), overwrite=False, still_there=lambda: None)

    async def write() -> None:
        async with open_store(url) as store, await _claimed(store, name) as claim:
            generation = store.record.generation
            served = await ServedTree.open(claim, generation, served_at="", name=name, max_bytes=None)
            async with trio.open_nursery() as serving:
                serving.start_soon(served.run)
                async with trio.open_nursery() as nursery:
                    for first in range(FILES_IN_FLIGHT):
                        nursery.start_soon(put, served, first)
                serving.cancel_scope.cancel()

    trio.run(write)


async def _claimed(store: Store, name: str) -> Claim:
    view = await store.inspect(directory_of(name))
    return await store.claim(directory_of(name), view.epoch_seen + 1, _WRITER)


def measure_tree(url: str, name: str) -> dict[str, Any]:
    """Return the seconds of a replay of a tree, and those and the bytes of its snapshot, without a sync."""

    async def measure() -> dict[str, Any]:
        async with open_store(url) as store:
            begun = time.perf_counter()
            state = await inspect_whole(store, directory_of(name), CHAIN)
            tree = await replay(store, state, directory_of(name))
            replayed = time.perf_counter()
            size = sum(len(encode_v1(change_record(one))) for one in tree.snapshot(""))
            return {
                "replay_s": replayed - begun,
                "snapshot_s": time.perf_counter() - replayed,
                "snapshot_mb": size / 1e6,
            }

    return trio.run(measure)
