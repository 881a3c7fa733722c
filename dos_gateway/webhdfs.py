"""WebHDFS, the protocol of Hadoop's client, with httptools: the parser of Node.js, in strict mode.

- JSON answers have no Content-Type: a class that would parse it is missing in Spark's jars.
- CREATE is redirected to a second port, whose connections end after one request: the JDK neither repeats a
  body that it streams nor notices that a pooled connection is dead.
- RetriableException is never sent: the client would stay with this gateway.
- Without a key, a gateway on loopback answers only requests to an address of loopback: a page of another site
  can lead its own name here, and a browser then takes both for one site.
- The connection that has waited longest for its client gives way when there are too many.
- One task looks at the limits of time of all connections: a scope for each wait costs more than a lookup of
  a file.
"""

import hmac
import logging
import math
import os
import re
import select
import socket
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote

import httptools
import msgspec
import trio

from dos_gateway.core.hadoop import (
    SERVER_DEFAULTS,
    FileStatus,
    HadoopError,
    Parts,
    ascii_target,
    bad_request,
    block_locations,
    empty_body,
    parts_of,
    path_in,
    refused,
    unsupported,
)
from dos_gateway.gateway import Gateway
from dos_gateway.limits import (
    answers_max,
    connections_max,
    descriptors_reserved,
    files_max,
    head_bytes_max,
    idle_body_s,
    idle_connection_s,
    key_seconds,
    listing_entries_max,
    receive_bytes,
    refused_body_bytes_max,
    send_bytes,
    stalled_answer_s,
    stalled_loop_s,
    stalled_others_s,
    tick_s,
    uploads_max,
    yield_nodes,
)
from dos_gateway.serving import ServedTree, clock
from dos_protocol.arguments import address_text, bare_host, is_loopback, is_wildcard
from dos_protocol.errors import DosError
from dos_tls import (
    LogLimit,
    ServerContext,
    TlsError,
    TlsListener,
    TlsSettings,
    TlsStream,
    TlsTruncatedError,
    raise_file_limit,
)

logger: Final = logging.getLogger("dos.gateway")
_STRANGERS: Final = (400, 401, 404, 405, 421)
"""Codes of answers to clients that may be anybody."""
_PREFIX: Final = b"/webhdfs/v1"
_TOKEN_PATH: Final = b"/oauth2/token"
_METHODS: Final = (b"GET", b"PUT", b"POST", b"DELETE")
_HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_OF_NO_TREE: Final = {"GETHOMEDIRECTORY": {"Path": "/user/dos"}, "GETSERVERDEFAULTS": SERVER_DEFAULTS}
"""Answers that are the same for every tree."""
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_encode: Final = msgspec.json.encode


ClientStream = trio.SocketStream | TlsStream


class ClientLeftError(Exception):
    """The client has ended its connection: it gets no answer, and nothing is changed for it."""


_ENDS: Final = (ClientLeftError, TlsTruncatedError, trio.BrokenResourceError, trio.ClosedResourceError)


class FileRequest(NamedTuple):
    """A request, parsed. is_empty: its head says that no body follows. Raises HadoopError where it is used
    wrongly.
    """

    method: str
    op: str
    path: str
    parts: Parts
    query: Mapping[str, str]
    host: str
    peer: str
    is_empty: bool
    body: Callable[[], AsyncGenerator[bytes]]
    still_there: Callable[[], None]

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.query.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise bad_request(f"{name} is true or false, got {text!r:.40}")
        return text == "true"

    def number(self, name: str) -> int | None:
        text = self.query.get(name)
        if text is None or text == "null":
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise bad_request(f"{name} is a whole number from 0 on, got {text!r:.40}")
        return int(text)


class FileReply(NamedTuple):
    """What is answered: JSON in pieces, or the bytes of a file. reason: the phrase beside the code, which
    fsspec shows of an answer to a body, instead of the JSON.
    """

    code: int
    json: Any = None
    location: str = ""
    stream: tuple[int, AsyncGenerator[bytes]] | None = None
    pieces: list[bytes] | None = None
    reason: str = ""


class _Waiting:
    """The connections that wait for their clients, the longest first: it gives way if there are too many."""

    def __init__(self) -> None:
        self._since: dict[_Connection, float] = {}

    def begin(self, connection: "_Connection") -> None:
        self._since[connection] = clock()

    def end(self, connection: "_Connection") -> None:
        self._since.pop(connection, None)

    def end_longest(self, after_s: float = 0.0) -> bool:
        """End the one that has waited longest. Return whether one has waited for so long."""
        connection = next(iter(self._since), None)
        if connection is None or clock() - self._since[connection] < after_s:
            return False
        self.end(connection)
        connection.scope.cancel()
        return True


class WebHdfs:
    """The requests of one gateway. key: clients must have it; empty: none is needed. loopback_only: requests
    must be to an address of loopback.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        scheme: str,
        body_port: int,
        key: str = "",
        loopback_only: bool = False,
        connections: int = connections_max,
    ) -> None:
        self.figures = gateway.figures
        self.loopback_only = loopback_only
        self.idle, self.sending = _Waiting(), _Waiting()
        self._connections_max = connections
        self._answers = trio.Semaphore(answers_max)
        self._log = LogLimit()
        self._gateway, self._scheme, self._body_port = gateway, scheme, body_port
        self._key = key.encode()
        self._bearer = sha256(b"dos gateway bearer " + self._key).hexdigest() if key else ""
        self._uploads = trio.Semaphore(uploads_max)
        self._ticked = clock()
        self._refuses_until = self._ticked
        self._connections: set[_Connection] = set()
        self._handlers: dict[str, tuple[str, Callable[[ServedTree, FileRequest], Awaitable[FileReply]]]] = {
            "GETFILESTATUS": ("GET", self._status),
            "GETFILELINKSTATUS": ("GET", self._status),
            "LISTSTATUS": ("GET", self._listing),
            "LISTSTATUS_BATCH": ("GET", self._listing_batch),
            "GETCONTENTSUMMARY": ("GET", self._summary),
            "GETFILEBLOCKLOCATIONS": ("GET", self._block_locations),
            "OPEN": ("GET", self._open),
            "MKDIRS": ("PUT", self._make_folder),
            "CREATE": ("PUT", self._create),
            "RENAME": ("PUT", self._rename),
            "DELETE": ("DELETE", self._delete),
            "SETPERMISSION": ("PUT", self._accept),
            "SETTIMES": ("PUT", self._accept),
        }

    async def watch_itself(self, listeners: Sequence[trio.SocketListener]) -> None:
        """End the connections that wait too long for their clients.

        After the process stood still, close all of them unread, also those that wait to be accepted.
        Requests in them are from before: a DELETE among them may have been repeated elsewhere, and its file
        committed anew.
        """
        while True:
            await trio.sleep(tick_s)
            now = clock()
            for connection in self._connections:
                if connection.ends_at < now:
                    connection.scope.cancel()
            if self.is_late:
                # What was accepted in this moment is not among them yet.
                self._refuses_until = clock() + tick_s
                for connection in self._connections:
                    connection.scope.cancel()
                for listener in listeners:
                    _refuse_waiting(listener)
                self.figures.counts["stalls"] += 1
                logger.warning("the gateway stood still for %.1f s: connections end", clock() - self._ticked)
            self._ticked = clock()

    @property
    def is_late(self) -> bool:
        return clock() - self._ticked > tick_s + stalled_loop_s

    async def serve(self, stream: ClientStream) -> None:
        """Serve a connection of the first port."""
        await self._connection(stream, closes=False)

    async def serve_body(self, stream: ClientStream) -> None:
        """Serve a connection of the second port, which ends after one request."""
        await self._connection(stream, closes=True)

    async def _connection(self, stream: ClientStream, *, closes: bool) -> None:
        full = self.figures.open_connections >= self._connections_max and not self.idle.end_longest()
        if full or self.is_late or clock() < self._refuses_until:
            await trio.aclose_forcefully(stream)
            return
        self.figures.open_connections += 1
        try:
            with trio.CancelScope() as scope:
                connection = _Connection(self, stream, scope, closes=closes)
                self._connections.add(connection)
                try:
                    await connection.run()
                finally:
                    self._connections.discard(connection)
        except (*_ENDS, OSError) as error:
            logger.debug("a connection has ended: %r", error)  # nobody waits for an answer
        except TlsError as error:
            self._log_at_times(type(error).__name__, str(error))
        except (DosError, HadoopError) as error:
            # In the middle of a body: its length was sent, so the client notices that it is cut off.
            logger.warning("a body could not be sent: %s", error)
        finally:
            self.figures.open_connections -= 1
            await trio.aclose_forcefully(stream)

    def _log_at_times(self, kind: str, text: str) -> None:
        if (line := self._log.text(kind, text, clock())) is not None:
            logger.warning("a client was refused: %s", line)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Hold one of the answers that may be on their way at once: each has a piece of a body in memory."""
        while True:
            with trio.move_on_after(tick_s):
                await self._answers.acquire()
                break
            self.sending.end_longest(stalled_others_s)
        try:
            yield
        finally:
            self._answers.release()

    async def reply(self, request: FileRequest, authorization: bytes) -> FileReply:
        """Perform a request. Raises ClientLeftError."""
        begun, outcome = clock(), "left"
        try:
            reply, outcome = await self._outcome(request, authorization)
            return reply
        finally:
            self.figures.count(self._kind(request), outcome, clock() - begun)

    def _kind(self, request: FileRequest) -> str:
        """Return the operation for the figures, of which clients cannot make up more."""
        if request.op not in self._handlers:
            return request.op if request.op in _OF_NO_TREE else "other"
        return "CREATE_BODY" if request.op == "CREATE" and "data" in request.query else request.op

    async def _outcome(self, request: FileRequest, authorization: bytes) -> tuple[FileReply, str]:
        try:
            if self._bearer and not self._is_allowed(authorization):
                return self._refused_key("bearer", request), "unauthorised"
            op = request.op
            if op in _OF_NO_TREE:
                return FileReply(200, _OF_NO_TREE[op]), "done"
            if op not in self._handlers:
                raise unsupported(op[:40])
            method, handler = self._handlers[op]
            if request.method != method:
                raise bad_request(f"op={op} is a {method}, got {request.method[:20]}")
            return await handler(await self._gateway.served(), request), "done"
        except HadoopError as error:
            return FileReply(error.code, error.reply, reason=error.reason), error.outcome
        except DosError as error:
            logger.warning("%s %s: %s", request.op, request.path, error)
            failed = refused(str(error))
            return FileReply(failed.code, failed.reply), "failed"

    def _is_allowed(self, authorization: bytes) -> bool:
        kind, _, given = authorization.partition(b" ")
        if kind.lower() != b"basic":
            return hmac.compare_digest(authorization, b"Bearer " + self._bearer.encode())
        # Clients without OAuth2, as fsspec: the key is the password, and the name of the user proves nothing.
        with suppress(ValueError):
            return hmac.compare_digest(b64decode(given, validate=True).partition(b":")[2], self._key)
        return False

    async def exchange_key(self, request: FileRequest) -> FileReply:
        """Give the bearer of all requests for the key (OAuth2, a refresh token). Raises ClientLeftError."""
        body = b""
        async with aclosing(request.body()) as parts:
            async for part in parts:
                body += part
                if len(body) > head_bytes_max:
                    return FileReply(400)
        given = dict(parse_qsl(body.decode("latin-1"))).get("refresh_token", "")
        if not self._bearer or not hmac.compare_digest(given.encode(), self._key):
            return self._refused_key("key", request)
        reply = {"access_token": self._bearer, "expires_in": str(key_seconds), "token_type": "bearer"}
        return FileReply(200, reply)

    def _refused_key(self, what: str, request: FileRequest) -> FileReply:
        self._log_at_times(what, f"{request.peer} has no {what} of this gateway")
        return FileReply(401)

    # --- operations -----------------------------------------------------------------------------------------

    async def _status(self, served: ServedTree, request: FileRequest) -> FileReply:
        return FileReply(200, {"FileStatus": (await served.status(request.parts)).reply()})

    async def _accept(self, served: ServedTree, request: FileRequest) -> FileReply:
        await served.status(request.parts)  # a tree has neither owners nor rights of its own
        return FileReply(200)

    async def _listing(self, served: ServedTree, request: FileRequest) -> FileReply:
        entries = await served.listing(request.parts)
        pieces = await _listed(b'{"FileStatuses":{"FileStatus":[', entries, b"]}}")
        return FileReply(200, pieces=pieces)

    async def _listing_batch(self, served: ServedTree, request: FileRequest) -> FileReply:
        after = request.query.get("startafter", "")
        part, follow = await served.listing_after(request.parts, after, listing_entries_max)
        begin = b'{"DirectoryListing":{"partialListing":{"FileStatuses":{"FileStatus":['
        pieces = await _listed(begin, part, b']}},"remainingEntries":%d}}' % follow)
        return FileReply(200, pieces=pieces)

    async def _summary(self, served: ServedTree, request: FileRequest) -> FileReply:
        return FileReply(200, (await served.summary(request.parts)).reply)

    async def _block_locations(self, served: ServedTree, request: FileRequest) -> FileReply:
        return FileReply(200, block_locations(await served.status(request.parts)))

    async def _open(self, served: ServedTree, request: FileRequest) -> FileReply:
        offset, length = request.number("offset") or 0, request.number("length")
        return FileReply(200, stream=await served.open_file(request.parts, offset, length))

    async def _make_folder(self, served: ServedTree, request: FileRequest) -> FileReply:
        await served.make_folder(request.parts, request.still_there)
        return FileReply(200, {"boolean": True})

    async def _create(self, served: ServedTree, request: FileRequest) -> FileReply:
        overwrite = request.flag("overwrite", default=True)
        create_parent = request.flag("createparent", default=True)
        at = f"{request.host}:{self._body_port}/webhdfs/v1{quote(request.path)}"
        if request.flag("data", default=False):
            if request.is_empty:
                raise empty_body()
            async with self._uploads, aclosing(request.body()) as body:
                self.figures.uploads += 1
                try:
                    await served.create(
                        request.parts,
                        body,
                        overwrite=overwrite,
                        create_parent=create_parent,
                        still_there=request.still_there,
                    )
                finally:
                    self.figures.uploads -= 1
            return FileReply(201, location=f"{self._scheme}://{at}")
        await served.check_create(request.parts, overwrite=overwrite, create_parent=create_parent)
        location = f"{self._scheme}://{at}?op=CREATE&overwrite={str(overwrite).lower()}&data=true"
        if not create_parent:
            location += "&createparent=false"
        if request.flag("noredirect", default=False):
            return FileReply(200, {"Location": location})
        return FileReply(307, location=location)

    async def _rename(self, served: ServedTree, request: FileRequest) -> FileReply:
        if "destination" not in request.query:
            raise bad_request("op=RENAME needs destination=PATH")
        target, options = parts_of(request.query["destination"]), request.query.get("renameoptions")
        done = await served.move(request.parts, target, options, request.still_there)
        return FileReply(200, None if options is not None else {"boolean": done})

    async def _delete(self, served: ServedTree, request: FileRequest) -> FileReply:
        recursive = request.flag("recursive", default=False)
        done = await served.remove(request.parts, recursive=recursive, still_there=request.still_there)
        return FileReply(200, {"boolean": done})


def _refuse_waiting(listener: trio.SocketListener) -> None:
    """Close the connections that wait to be accepted."""
    with socket.socket(fileno=os.dup(listener.socket.fileno())) as own, suppress(OSError):
        own.settimeout(0.0)
        while True:
            own.accept()[0].close()


async def _listed(begin: bytes, entries: list[FileStatus], end: bytes) -> list[bytes]:
    """Return the JSON of a listing. Other tasks run in between: a directory may have 100,000 files."""
    pieces = [begin]
    for at in range(0, len(entries), yield_nodes):
        part = [entry.reply(entry.name) for entry in entries[at : at + yield_nodes]]
        pieces += [b"," if at else b"", _encode(part)[1:-1]]
        await trio.lowlevel.checkpoint()
    return [*pieces, end]


class _RefusedError(Exception):
    """What the client sends is no HTTP, or too long. reply: the answer, after which the connection ends."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.reply = FileReply(code, bad_request(text).reply)


class _Head(NamedTuple):
    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    closes: bool


_Event = _Head | bytes | _RefusedError | None
"""None: the end of a request, also of one without a body."""


class _Events:
    """What the bytes of a connection mean, in order."""

    def __init__(self) -> None:
        self.found: deque[_Event] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._line = self._target = b""
        self._in_request = False
        self._unparsed = 0

    def add(self, data: bytes | bytearray) -> None:
        """Parse what was received; nothing of it is kept that is not bounded."""
        before = len(self.found)
        self._unparsed += len(data)
        if not self._in_request:
            self._line += data
            if data and b"\n" not in self._line and len(self._line) < head_bytes_max:
                return
            data, self._line = ascii_target(self._line), b""
        try:
            self._parse(bytes(data))
        except httptools.HttpParserError as error:
            self.found.append(_RefusedError(400, str(error)))
        if len(self.found) > before:
            self._unparsed = 0
        elif self._unparsed > head_bytes_max:
            self.found.append(_RefusedError(431, f"a head has at most {head_bytes_max} bytes"))

    def add_end(self) -> None:
        """Note that the client sends no more. Raises ClientLeftError, unless it has sent a part of a head."""
        has_begun = self._unparsed
        self.add(b"")
        if not self.found:
            if not has_begun:
                raise ClientLeftError
            self.found.append(_RefusedError(400, "a request ends in the middle of a line"))

    def ends(self) -> bool:
        """Return whether the end of the request is next, and take it."""
        if self.found and self.found[0] is None:
            self.found.popleft()
            return True
        return False

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # Answered as if it had not asked for another protocol, as HTTP permits.
                data = data[upgrade.args[0] :]

    def on_message_begin(self) -> None:
        self._headers, self._target, self._in_request = {}, b"", True

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        # Of two hosts, a proxy may have checked the other one.
        self._headers[name] = b"" if name == b"host" and name in self._headers else value

    def on_headers_complete(self) -> None:
        closes = not self._parser.should_keep_alive()
        self.found.append(_Head(self._parser.get_method(), self._target, self._headers, closes))
        self._headers = {}  # what follows a body is not read

    def on_body(self, part: bytes) -> None:
        self.found.append(part)

    def on_message_complete(self) -> None:
        self._in_request = False
        self.found.append(None)


class _Connection:
    """One connection: its requests, one after the other. scope: ends it. ends_at: when that is due."""

    def __init__(
        self, owner: WebHdfs, stream: ClientStream, scope: trio.CancelScope, *, closes: bool
    ) -> None:
        self.scope, self.ends_at = scope, math.inf
        self._owner, self._stream, self._closes = owner, stream, closes
        self._events = _Events()
        self._in_body = self._expects = False
        self._poll = select.poll()
        self._poll.register(stream.socket.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        try:
            self._peer = str(stream.socket.getpeername()[0])
        except OSError:
            self._peer = "a client that has left"

    async def run(self) -> None:
        """Serve until it ends. Raises ClientLeftError and the errors of the stream."""
        try:
            while True:
                head = await self._next_head()
                self._in_body = not self._events.ends()
                self._expects = head.headers.get(b"expect", b"").lower() == b"100-continue" and self._in_body
                self._closes = self._closes or head.closes
                await self._one(head)
                if self._closes:
                    return
        except _RefusedError as refusal:
            self._in_body, self._closes = False, True
            await self._send(refusal.reply)

    async def _next_head(self) -> _Head:
        self._owner.idle.begin(self)
        try:
            return await self._event(idle_connection_s)  # type: ignore[return-value]  # a body was read
        finally:
            self._owner.idle.end(self)

    async def _one(self, head: _Head) -> None:
        headers = head.headers
        raw, _, query = head.target.partition(b"?")
        host = _host_in(headers.get(b"host", b""))
        refusal = self._refusal(head.method, raw, headers, host)
        try:
            given = _query_in(query)
            path = path_in(raw.removeprefix(_PREFIX) or b"/")
            parts = parts_of(path)
        except (HadoopError, ValueError) as error:
            refusal = refusal or FileReply(400, bad_request(str(error)).reply)
        if refusal is not None:
            # What follows on this connection may be anything.
            self._closes = True
            await self._send(refusal)
            return
        method, op = head.method.decode(), given.get("op", "").upper()
        is_empty = b"transfer-encoding" not in headers and not int(headers.get(b"content-length", 0))
        of_client = (host, self._peer, is_empty, self._body, self._still_there)
        request = FileRequest(method, op, path, parts, given, *of_client)
        if raw == _TOKEN_PATH and method == "POST":
            reply = await self._owner.exchange_key(request)
        else:
            reply = await self._owner.reply(request, headers.get(b"authorization", b""))
        await self._send(reply)

    def _refusal(
        self, method: bytes, raw: bytes, headers: Mapping[bytes, bytes], host: str
    ) -> FileReply | None:
        """Return the answer to a request that is not served, whatever it asks for."""
        if method not in _METHODS:
            return FileReply(405)  # without a body: an answer to HEAD has none
        if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            return FileReply(501, bad_request("Transfer-Encoding is chunked").reply)
        if not host:
            return FileReply(400, bad_request("a request has one Host header, HOST or HOST:PORT").reply)
        if self._owner.loopback_only and not _is_loopback(host):
            text = f"this gateway listens on loopback, and is not known as {host}: use its address"
            return FileReply(421, bad_request(text).reply)
        if raw not in (_PREFIX, _TOKEN_PATH) and not raw.startswith(_PREFIX + b"/"):
            return FileReply(404, bad_request(f"a path begins with {_PREFIX.decode()}/").reply)
        return None

    async def _body(self) -> AsyncGenerator[bytes]:
        while self._in_body:
            if (part := await self._piece()) is not None:
                yield part

    async def _piece(self) -> bytes | None:
        """Return the next piece of the body, None at its end. Raises _RefusedError."""
        part = await self._event(idle_body_s)
        self._in_body, self._expects = part is not None, False
        return part  # type: ignore[return-value]  # a head comes after the end only

    async def _event(self, wait_s: float) -> _Head | bytes | None:
        """Return the next event, for which the connection waits so long. Raises _RefusedError."""
        found = self._events.found
        if not found:
            if self._expects:
                self._expects = False
                await self._send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.ends_at = clock() + wait_s
            try:
                await self._receive()
            finally:
                self.ends_at = math.inf
        event = found.popleft()
        if isinstance(event, _RefusedError):
            raise event
        return event

    async def _receive(self) -> None:
        while not self._events.found:
            data = await self._stream.receive_some(receive_bytes)
            if self._owner.is_late:
                raise ClientLeftError
            if not data:
                self._events.add_end()
                return
            # The whole head, however slowly its bytes come.
            self.ends_at = min(self.ends_at, clock() + idle_body_s)
            self._events.add(data)

    def _still_there(self) -> None:
        """Raise ClientLeftError if the client has ended the connection: it may have repeated the request."""
        if self._poll.poll(0) or self._owner.is_late:
            raise ClientLeftError

    async def _send(self, reply: FileReply) -> None:
        if self._in_body:  # refused before its body was read
            await self._read_rest(refused_body_bytes_max if reply.code in _STRANGERS else None)
        pieces = reply.pieces or ([b""] if reply.json is None else [_encode(reply.json)])
        size = reply.stream[0] if reply.stream else sum(map(len, pieces))
        out = [_STATUS_LINES[reply.code], b"Content-Length: %d\r\n" % size]
        if reply.reason:
            out[0] = f"HTTP/1.1 {reply.code} {reply.reason}\r\n".encode()
        if reply.location:
            out.append(f"Location: {reply.location}\r\n".encode())
        if reply.stream is not None:
            out.append(b"Content-Type: application/octet-stream\r\n")
        if self._closes:
            out.append(b"Connection: close\r\n")
        out.append(b"\r\n")
        if reply.stream is None:
            out += pieces
            if size <= send_bytes:
                await self._send_all(b"".join(out))
            else:
                for piece in out:  # a listing of a large directory is not copied as a whole
                    await self._send_all(piece)
            return
        async with aclosing(reply.stream[1]) as parts, self._owner.answering():
            await self._send_all(b"".join(out))
            async for part in parts:
                size -= len(part)
                self._owner.sending.begin(self)
                try:
                    await self._send_all(part)
                finally:
                    self._owner.sending.end(self)
        if size:
            raise ClientLeftError  # it is cut off, as the client notices

    async def _read_rest(self, bytes_max: int | None) -> None:
        """Read the body that is refused: clients send all of it before they read the answer."""
        try:
            while self._in_body:
                part = await self._piece()
                if bytes_max is not None and (bytes_max := bytes_max - len(part or b"")) < 0:
                    break
        except (_RefusedError, ClientLeftError):
            pass
        self._closes = self._closes or self._in_body

    async def _send_all(self, data: bytes) -> None:
        for at in range(0, len(data), send_bytes):
            self.ends_at = clock() + stalled_answer_s
            try:
                await self._stream.send_all(data[at : at + send_bytes])
            finally:
                self.ends_at = math.inf


@lru_cache(maxsize=256)
def _host_in(header: bytes) -> str:
    """Return the host of a Host header, "" if it is none."""
    named = _HOST.fullmatch(header)
    return named[1].decode() if named is not None else ""


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    return is_loopback(bare_host(host))


@lru_cache(maxsize=256)
def _query_in(query: bytes) -> Mapping[str, str]:
    """Return the parameters of a request. Most requests ask for the same things, of other paths."""
    pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    return {name.lower(): value for name, value in pairs}


async def serve_gateway(
    gateway: Gateway,
    host: str,
    port: int,
    *,
    tls: TlsSettings | None = None,
    key: str = "",
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gateway and listen for its clients, until cancelled. Reports the port once it listens.

    port: the next one receives bodies. 0: two free ones. key: clients must have it, if it is not empty.
    Raises OSError if a port cannot be used, TlsSettingsError.
    """
    port, first, second = await _listen(host, port)
    gateway.served_at = gateway.served_at or _found_at(host, port)
    if gateway.alone:
        gateway.served_at += f", beside process {os.getppid()}"
    shell = WebHdfs(
        gateway,
        scheme="http" if tls is None else "https",
        body_port=port + 1,
        key=key,
        loopback_only=is_loopback(host) and not key,
        connections=min(connections_max, raise_file_limit(files_max) - descriptors_reserved),
    )
    context = None if tls is None else ServerContext(tls, client_certificates=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.run)
        nursery.start_soon(shell.watch_itself, [*first, *second])
        for listeners, serve in ((first, shell.serve), (second, shell.serve_body)):
            if context is None:
                nursery.start_soon(trio.serve_listeners, serve, listeners)
            else:
                secure = [TlsListener(one, context) for one in listeners]
                nursery.start_soon(trio.serve_listeners, serve, secure)
        task_status.started(port)


def _found_at(host: str, port: int) -> str:
    """Return where others find this gateway, for messages."""
    own = socket.gethostname()
    at = address_text(own if is_wildcard(host) else host, port)
    return f"{at} on {own}" if is_loopback(host) else at


async def _listen(host: str, port: int) -> tuple[int, list[trio.SocketListener], list[trio.SocketListener]]:
    """Return the port, and the listeners of it and of the next one."""
    while True:
        first = await trio.open_tcp_listeners(port, host=host)
        found: int = first[0].socket.getsockname()[1]
        try:
            return found, first, await trio.open_tcp_listeners(found + 1, host=host)
        except OSError:
            for one in first:
                await one.aclose()
            if port:
                raise
