r"""Lines over TCP into an input handle: each line is recorded in the store before it is acknowledged.

    async with open_store("dos://h1,h2,h3") as store:
        await serve_lines(store, "shop", "lines", "entry-1", port=7777)

The answer to a connection is the number of its lines that a quorum has on stable storage, as decimal text and
a newline, each time that it grows. A client resends a line that was not acknowledged, so a line may be
recorded twice, and no acknowledged line is lost. One producer writes the lines of all connections. Their
times never decrease, even after a restart, so `event_time(..., lateness=timedelta(0))` always holds.
"""

import logging
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import trio

from checkpoint.limits import handshake_timeout_s
from dataflow import limits
from dataflow.errors import SchemaError
from dataflow.producing import Producer, open_producer
from dos_client import Store
from dos_protocol.arguments import is_loopback
from dos_protocol.errors import DosError
from dos_tls import (
    LogLimit,
    ServerContext,
    TlsError,
    TlsHandshakeError,
    TlsListener,
    TlsSettingsError,
    TlsStream,
    tls_of_environment,
)

ENTRY_SCHEMA: Final = "at timestamp, line string"
"""The schema for the `InputSource` of such a handle."""

logger = logging.getLogger("dos.dataflow")
_log_limit = LogLimit()

_mark = struct.Struct(">Q")
"""The time of the last line, in microseconds since 1970."""


def _wall_us() -> int:
    return time.time_ns() // 1000


@dataclass(slots=True)
class _Connection:
    """One client. `recorded`: how many of its lines are on stable storage."""

    stream: trio.abc.Stream
    recorded: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)

    async def wait_recorded(self, count: int) -> None:
        """Wait until `count` lines are recorded and the client was answered."""
        while self.recorded < count:
            await self._changed.wait()

    async def note(self, count: int) -> None:
        """Add newly recorded lines and send the new count to the client."""
        self.recorded += count
        await self.reply(f"{self.recorded}\n")
        self._changed.set()
        self._changed = trio.Event()

    async def reply(self, text: str) -> None:
        """Send text to the client. A client that reads nothing, or is gone, delays others only briefly."""
        with trio.move_on_after(limits.entry_reply_s):
            try:
                await self.stream.send_all(text.encode())
            except (trio.BrokenResourceError, trio.ClosedResourceError, TlsError, OSError):
                return


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines that arrived together on a connection, and their time of arrival."""

    connection: _Connection
    lines: list[str]
    at_us: int


async def serve_lines(
    store: Store,
    application: str,
    handle: str,
    producer: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    insecure: bool = False,
    tls: ServerContext | None = None,
    clock: Callable[[], int] = _wall_us,
    recorded: Callable[[int], None] = lambda _: None,
    task_status: "trio.TaskStatus[int]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept lines until cancelled. Read them with `InputSource(handle, ENTRY_SCHEMA)`.

    application: the name given to `run`. producer: the name of this entry point; of several with one name,
    the one started last serves. insecure: allow an address that other machines can reach, without encryption
    or tokens. tls: the certificate of this host. recorded: called with the number of lines that are newly on
    stable storage. task_status: gets the port.

    Raises SchemaError for such an address without `insecure`; TlsSettingsError without `tls` although the
    environment demands it; FencedError when another entry point took the name; and what `open_producer`
    raises. Lines that were not acknowledged may be recorded or not.
    """
    if tls is None and tls_of_environment() is not None:
        raise TlsSettingsError(
            "an entry point for lines would accept plain text, but DOS_TLS demands TLS",
            remedy="pass the certificate of this host: tls=ServerContext(...), or --tls DIR",
        )
    if not (insecure or is_loopback(host) or (tls is not None and tls.client_certificates)):
        raise SchemaError(
            f"an entry point at {host!r} accepts lines from any client that can reach it; pass"
            " insecure=True, or use 127.0.0.1"
        )
    async with open_producer(store, application, handle, producer, ENTRY_SCHEMA) as writer:
        to_record, lines = trio.open_memory_channel[_Lines](limits.entry_chunks_waiting)
        plain = await trio.open_tcp_listeners(port, host=host)
        address = plain[0].socket.getsockname()
        listeners = plain if tls is None else [TlsListener(one, tls) for one in plain]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_record, writer, lines, recorded)
            serve = partial(_serve, to_record=to_record, clock=clock)
            await nursery.start(trio.serve_listeners, serve, listeners)
            task_status.started(address[1])


async def _serve(
    stream: trio.abc.Stream, *, to_record: "trio.MemorySendChannel[_Lines]", clock: Callable[[], int]
) -> None:
    """Serve one connection until its client has sent everything and got its last answer."""
    if isinstance(stream, TlsStream) and not await _shaken(stream):
        return
    connection = _Connection(stream)
    count = 0
    rest = b""
    try:
        async for data in stream:
            complete, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                lines = [line.removesuffix(b"\r").decode() for line in complete.split(b"\n")]
                await to_record.send(_Lines(connection, lines, clock()))
                count += len(lines)
            if len(rest) > limits.entry_line_bytes_max:
                text = f"error: line {count + 1} has more than {limits.entry_line_bytes_max} bytes\n"
                await connection.reply(text)
                return
    except UnicodeDecodeError as error:
        await connection.reply(f"error: a line after line {count} is not UTF-8: {error.reason}\n")
        return
    except (trio.BrokenResourceError, TlsError, OSError):  # what came before was sent to be recorded
        return
    with trio.move_on_after(limits.entry_last_answer_s):
        await connection.wait_recorded(count)


async def _shaken(stream: TlsStream) -> bool:
    """Complete the TLS handshake. Log why it failed, at most one line of a kind within some seconds."""
    reason: DosError | OSError = TlsHandshakeError(f"no TLS handshake within {handshake_timeout_s:g} s")
    with trio.move_on_after(handshake_timeout_s):
        try:
            await stream.handshake()
        except (TlsError, OSError) as error:
            reason = error
        else:
            return True
    text = _log_limit.text(type(reason).__name__, f"refused a client: {reason.args[0]}", trio.current_time())
    if text is not None:
        logger.warning("%s", text)
    return False


async def _record(
    writer: Producer, chunks: "trio.MemoryReceiveChannel[_Lines]", recorded: Callable[[int], None]
) -> None:
    # Times never decrease, even if the clock does: a smaller one would be late.
    mark = writer.last.mark
    last = _mark.unpack(mark)[0] if len(mark) == _mark.size else 0
    async for first in chunks:
        batch = [first]
        while True:
            try:
                batch.append(chunks.receive_nowait())
            except trio.WouldBlock:
                break
        rows: list[dict[str, Any]] = []
        for chunk in batch:
            last = max(last, chunk.at_us)
            rows += [{"at": last, "line": line} for line in chunk.lines]
        number = await writer.send(_batch(rows, writer.schema), mark=_mark.pack(last))
        await writer.wait_recorded(number)  # before the answers: acknowledged lines are never lost
        recorded(len(rows))
        counts: Counter[int] = Counter()
        connections = {id(chunk.connection): chunk.connection for chunk in batch}
        for chunk in batch:
            counts[id(chunk.connection)] += len(chunk.lines)
        async with trio.open_nursery() as replying:
            for key, connection in connections.items():
                replying.start_soon(connection.note, counts[key])


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    at = pa.array([row["at"] for row in rows], pa.int64()).cast(schema.field("at").type)
    return pa.RecordBatch.from_arrays([at, pa.array([row["line"] for row in rows])], schema=schema)
