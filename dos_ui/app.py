"""The web application of the page: its files, the readings as JSON and as server-sent events, changes.

| path | answer |
|---|---|
| / | the page |
| /page/FILE | its script, style and libraries |
| /api/store, /api/lists, /api/trees, /api/regions/NAME | a reading |
| /api/events?region=NAME | the same readings again and again, as server-sent events |
| /api/directories, /api/objects, /api/records, /api/state | what is stored |
| POST /api/regions/NAME/CHANGE | a change: a request to the driver of a region that runs |

Everything needs the key of this page: what it shows is read with a token of the store. `/?key=KEY` sets it as
a cookie, which other sites cannot use; a change needs it once more, as `Authorization: Bearer KEY`.

Access is decided by the path that routes the request (`scope["path"]`), never by a URL that is put together
from headers. Directories, objects and regions are named in requests, and each name is checked before it is
used: a request reaches the store of this page and nothing else.
"""

import hmac
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from checkpoint import VERBS, Checkpoint, stored_under
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.requests.client import RequestClient
from dos_client import Store
from dos_client.cli.objects import object_rows
from dos_protocol.arguments import bare_host
from dos_protocol.errors import BadNameError, DosError, ForbiddenError, LocalProtocolError, NotFoundError
from dos_protocol.names import check_name
from dos_ui.core.shown import directory_row
from dos_ui.readings import REGION_S, Readings
from journal import parse_segment_name
from journal.inspecting import inspect_url
from journal.showing import json_page

_OFFERED: Final = {verb.name: verb for verb in VERBS.values() if verb.button}
_PAGE: Final = Path(__file__).parent / "page"
_COOKIE: Final = "dos_page"
_BODY_BYTES_MAX: Final = 64 * 1024
_NUMBER_DIGITS_MAX: Final = 18
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?", re.ASCII)
_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)
_KEY_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>DOS</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="/page/style.css"><main><h1>This page needs its key</h1>
<p>It was printed when the page was started, at the end of its address.</p>
<form action="/"><label>Key <input name="key" type="password" autocomplete="off" autofocus></label>
<button>Open</button></form></main></html>"""


class PageKey:
    """The key of a page. read_only: changes are refused also with it."""

    def __init__(self, key: str, *, read_only: bool) -> None:
        self._key = key.encode()
        self.read_only = read_only

    def fits(self, given: str) -> bool:
        # In a time that does not depend on how much of it is right, or the key could be guessed bit by bit.
        return hmac.compare_digest(given.encode(), self._key)


def make_app(readings: Readings, key: PageKey, names: Collection[str]) -> Starlette:
    """Return the ASGI application. It runs on the trio thread of `readings`.

    names: the host names of this page, in lower case. A request for another name is refused.
    """
    api = _Api(readings, key)
    routes = [
        Route("/", api.page),
        Mount("/page", StaticFiles(directory=_PAGE)),
        Route("/api/about", api.about),
        Route("/api/store", _json(lambda _: readings.store())),
        Route("/api/lists", _json(lambda _: readings.lists())),
        Route("/api/trees", _json(lambda _: readings.trees())),
        Route(
            "/api/regions/{name}",
            _json(lambda request: readings.region(check_name(request.path_params["name"]))),
        ),
        Route("/api/regions/{name}/{change}", _json(api.change), methods=["POST"]),
        Route("/api/events", _json(api.events)),
        Route("/api/directories", _json(api.directories)),
        Route("/api/objects", _json(api.objects)),
        Route("/api/records", _json(api.records)),
        Route("/api/state", _json(api.state)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, key=key, names=frozenset(names))])


class _Guard:
    """Passes requests with the key, for a name of this page, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, key: PageKey, names: frozenset[str]) -> None:
        self._app = app
        self._key = key
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a WebSocket: the server answers that it was not accepted

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        await self._answer(scope)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> ASGIApp:
        path: str = scope["path"]
        if not self._is_ours(Headers(scope=scope).getlist("host")):
            text = "this page is not known by the name in the request's Host header"
            return JSONResponse({"error": f"{text}: open the address that was printed"}, 421)
        if self._may(Request(scope), path):
            return self._app
        if path == "/":
            return Response(_KEY_PAGE, 401, media_type="text/html")
        return JSONResponse({"error": "this page needs its key: open the address that was printed"}, 401)

    def _is_ours(self, hosts: list[str]) -> bool:
        """Return whether the Host header is an IP address or a name of this page."""
        # The names of another site may lead a browser here: it must not become one origin with this page.
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        if (name := bare_host(found[1]).lower()) in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def _may(self, request: Request, path: str) -> bool:
        if path.startswith("/page/"):
            return True  # they are the same for everybody
        if path == "/" and "key" in request.query_params:
            return True  # `_Api.page` compares it
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer":
            return self._key.fits(given)
        reads = request.method in ("GET", "HEAD")  # the cookie alone changes nothing
        return reads and self._key.fits(request.cookies.get(_COOKIE, ""))


def _json(read: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with JSON, or a response of `read`, and with the text of a DosError."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await read(request)
            return answer if isinstance(answer, Response) else JSONResponse(answer)
        except DosError as error:
            return JSONResponse({"error": str(error)}, _status_of(error))

    return endpoint


def _status_of(error: DosError) -> int:
    match error:
        case NotFoundError():
            return 404
        case ForbiddenError():
            return 403
        case LocalProtocolError() | BadNameError():
            return 400
        case _:
            return 503


class _Api:
    def __init__(self, readings: Readings, key: PageKey) -> None:
        self._readings = readings
        self._key = key

    async def page(self, request: Request) -> Response:
        given = request.query_params.get("key")
        if given is None:
            return FileResponse(_PAGE / "index.html")
        if not self._key.fits(given):
            return Response(_KEY_PAGE, 401, media_type="text/html")
        answer = RedirectResponse("/", 303)
        secure = request.scope["scheme"] == "https"
        answer.set_cookie(_COOKIE, given, httponly=True, samesite="strict", secure=secure)
        return answer

    async def about(self, _: Request) -> Response:
        changes = [] if self._key.read_only else [verb.form() for verb in _OFFERED.values()]
        return JSONResponse({"url": self._readings.url, "readOnly": self._key.read_only, "changes": changes})

    async def events(self, request: Request) -> Response:
        region = request.query_params.get("region", "")
        if region:
            check_name(region)
        return StreamingResponse(self._events(region), media_type="text/event-stream")

    async def _events(self, region: str) -> AsyncGenerator[str]:
        readings = self._readings
        kinds: dict[str, Callable[[], Awaitable[Any]]] = {
            "store": readings.store,
            "lists": readings.lists,
            "trees": readings.trees,
        }
        if region:
            kinds = {"region": lambda: readings.region(region)}
        while True:
            for kind, read in kinds.items():
                try:
                    yield _event(kind, await read())
                except DosError as error:
                    yield _event("problem", {"what": kind, "error": str(error)})
            await trio.sleep(REGION_S)

    async def change(self, request: Request) -> Any:
        if self._key.read_only:
            raise ForbiddenError("this page changes nothing", remedy="start it without --read-only")
        given = _json_object(await _body(request))
        region = check_name(request.path_params["name"])
        return await change(await self._readings.opened(), region, request.path_params["change"], given)

    async def directories(self, _: Request) -> Any:
        return await directory_rows(await self._readings.opened())

    async def objects(self, request: Request) -> Any:
        directory = check_name(request.query_params.get("directory", ""))
        return await objects_of(await self._readings.opened(), directory)

    async def records(self, request: Request) -> Any:
        asked = request.query_params
        directory, name = (check_name(asked.get(part, "")) for part in ("directory", "name"))
        return await records_of(
            f"{self._readings.url}/{directory}/{name}",
            self._readings.token,
            pattern=asked.get("pattern", ""),
            begin=_number(asked.get("begin", "0")),
            whole="whole" in asked,
        )

    async def state(self, request: Request) -> Any:
        asked = request.query_params
        return await state_of(
            await self._readings.opened(),
            check_name(asked.get("region", "")),
            checkpoint=_number(asked.get("checkpoint", "0")),
            table=asked.get("table", ""),
            search=asked.get("search", ""),
        )


async def _body(request: Request) -> bytes:
    """Raises LocalProtocolError if it is longer than any change needs."""
    body = bytearray()
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > _BODY_BYTES_MAX:
                raise LocalProtocolError(f"a request has at most {_BODY_BYTES_MAX} bytes")
    return bytes(body)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise LocalProtocolError(f"the request is not JSON, or nested too deeply: {error}") from error
    if not isinstance(given, dict):
        raise LocalProtocolError("the request must be a JSON object")
    return given


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS_MAX):
        raise LocalProtocolError(f"not a number of at most {_NUMBER_DIGITS_MAX} digits: {text[:40]!a}")
    return int(text)


def _event(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


# --- what is stored --------------------------------------------------------------------------------------

RECORDS_MAX: Final = 200
ROWS_MAX: Final = 500
Row = dict[str, Any]


async def directory_rows(store: Store) -> list[Row]:
    """Return each directory of a store with what it belongs to. Raises QuorumUnavailableError."""
    return [directory_row(name) for name in sorted(await store.list_directories())]


async def objects_of(store: Store, directory: str) -> list[Row]:
    """Return the objects of a directory, as `dos ls --json` prints them, each with the chain of which it is a
    segment.
    """
    return [row | {"chain": _chain_of(row["name"])} for row in await object_rows(store, directory)]


def _chain_of(name: str) -> str:
    segment = parse_segment_name(name)
    return "" if segment is None else segment.chain


async def records_of(
    url: str, token: bytes, *, pattern: str = "", begin: int = 0, whole: bool = False
) -> Row:
    """Return the first records that match, as `dos journal grep --json` prints them, from a logical offset
    on. `next`: from where to continue, None at the end. whole: only one record, with its strings in full.
    Raises LocalProtocolError for an invalid pattern, and what `inspect_url` raises.
    """
    count_max = 1 if whole else RECORDS_MAX
    try:
        consume, found = json_page(pattern, begin=begin, count_max=count_max, full=whole)
    except ValueError as error:
        raise LocalProtocolError(str(error), remedy="correct the regular expression") from error
    outcome = await inspect_url(url, token, consume, lambda *_: None, history=True)
    records = [json.loads(line) for line in found]
    return {
        "kind": outcome.kind,
        "records": records,
        "next": records[-1]["end"] if len(records) == count_max else None,
        "fault": "" if outcome.fault is None else str(outcome.fault),
        "notes": [text for text in (outcome.gone, *outcome.not_verified) if text],
    }


async def state_of(
    store: Store, region: str, *, checkpoint: int = 0, table: str = "", search: str = ""
) -> Row:
    """Return the tables of a region's state at a checkpoint (0: the last), and rows of one of them that
    contain a text.

    Needs the extra `dataflow`. Raises CheckpointReleasedError, MissingExtraError, and what reading raises.
    """
    from checkpoint.chains.state_blocks import StateFold  # needs the extra `dataflow`, for this page only

    view = await read_manifest(store, region)
    found = view.restorable(checkpoint) if checkpoint else view.last
    if found is None:
        return {"checkpoint": 0, "tables": [], "columns": [], "rows": [], "more": False}
    tables = dict[str, int]()
    columns, rows = list[str](), list[list[str]]()
    names = {uid: name for name, uid in stored_under(found.operators, found.uids).items()}
    for worker in sorted(found.workers):
        fold = await _folded(store, region, worker, found, StateFold())
        for stored in fold.operators():
            block, (uid, mark, own) = fold.take(stored), stored.partition("~")
            if uid not in names:
                continue  # it was dropped, and goes with the next snapshot
            name = f"{names[uid]}{mark}{own}"
            tables[name] = tables.get(name, 0) + (0 if block is None else block.num_rows)
            if name == table and block is not None:
                columns = ["worker", *(one for one in block.schema.names if one not in _HIDDEN)]
                rows += await trio.to_thread.run_sync(_matching, block, worker, search)
    return {
        "checkpoint": found.number,
        "tables": [{"table": name, "rows": count} for name, count in sorted(tables.items())],
        "columns": columns,
        "rows": rows[:ROWS_MAX],
        "more": len(rows) > ROWS_MAX,
    }


_HIDDEN: Final = ("_hash", "_deleted")


async def _folded(store: Store, region: str, worker: int, checkpoint: Checkpoint, fold: Any) -> Any:
    from checkpoint.chains.state_store import blocks_at

    async with aclosing(blocks_at(store, region, worker, checkpoint.workers[worker].state)) as blocks:
        async for block in blocks:
            fold.add(block.operator, await trio.to_thread.run_sync(block.decoded))
    return fold


def _matching(block: Any, worker: int, search: str) -> list[list[str]]:
    shown = [str(name) for name in block.schema.names if name not in _HIDDEN]
    found = list[list[str]]()
    for row in block.to_pylist():
        texts = [_text(row[name]) for name in shown]
        if any(search in text for text in texts):
            found.append([str(worker), *texts])
        if len(found) > ROWS_MAX:
            break
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# --- changes ---------------------------------------------------------------------------------------------


async def change(store: Store, region: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Request a change, wait until it is done, and return the driver's result. Raises LocalProtocolError,
    DosError, NoAnswerError (it may still be carried out), QuorumUnavailableError.
    """
    verb = _OFFERED.get(name)
    if verb is None:
        raise LocalProtocolError(f"unknown change {name!r}", remedy=f"there are {', '.join(_OFFERED)}")
    if problem := verb.problem_of(given):
        raise LocalProtocolError(problem)
    reply = await RequestClient(store, region).send(name, wait_s=verb.wait_s, **given)
    if reply.answer.verdict != "done":
        raise DosError(f"{name} of region {region} was {reply.answer.verdict}: {reply.answer.reason}")
    return reply.answer.result
