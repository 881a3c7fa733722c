"""Real gateways as processes, and a client that speaks WebHDFS as Hadoop's does, without its repetitions."""

import http.client
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

import trio

from dos_client import init_store, open_store
from dos_gateway.gateway import Gateway
from dos_gateway.webhdfs import serve_gateway
from tests.support.forked_servers import ForkedProcess
from tests.support.servers import ServerProcess, url_of

PREFIX = "/webhdfs/v1"


class Answer(NamedTuple):
    code: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> str:
        """The simple name of the exception, empty if there is none."""
        return "" if self.code < 400 or not self.body else str(self.json["RemoteException"]["exception"])


class WebHdfsClient:
    """Requests to one gateway, each on a connection of its own, which does not follow redirects."""

    def __init__(self, port: int, timeout_s: float = 60.0) -> None:
        self.port, self._timeout_s = port, timeout_s

    def send(self, method: str, target: str, body: bytes | Iterator[bytes] = b"", port: int = 0) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=self._timeout_s)
        try:
            connection.request(method, target, body or None)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), dict(answer.getheaders()))
        finally:
            connection.close()

    def ask(self, method: str, op: str, path: str, **query: object) -> Answer:
        return self.send(method, f"{PREFIX}{quote(path)}?{urlencode({'op': op, **query})}")

    def put(self, path: str, body: bytes, *, overwrite: bool = False, **query: object) -> Answer:
        """Both legs of a CREATE, the body in chunks; the first one's answer if it refuses."""
        first = self.ask("PUT", "CREATE", path, overwrite=str(overwrite).lower(), **query)
        if first.code != 307:
            return first
        at = urlsplit(first.headers["Location"])
        return self.send("PUT", f"{at.path}?{at.query}", iter((body,)), port=at.port or 0)

    def get(self, path: str, **query: object) -> bytes:
        answer = self.ask("GET", "OPEN", path, **query)
        assert answer.code == 200, answer
        return answer.body

    def names(self, path: str) -> list[str]:
        listed = self.ask("GET", "LISTSTATUS", path)
        assert listed.code == 200, listed
        return [one["pathSuffix"] for one in listed.json["FileStatuses"]["FileStatus"]]

    def rename(self, source: str, target: str, options: str | None = "NONE") -> Answer:
        more = {} if options is None else {"renameoptions": options}
        return self.ask("PUT", "RENAME", source, destination=target, **more)

    def delete(self, path: str, *, recursive: bool = True) -> bool:
        answer = self.ask("DELETE", "DELETE", path, recursive=str(recursive).lower())
        assert answer.code == 200, answer
        return bool(answer.json["boolean"])


class GatewayProcess:
    """`dos gateway` for the tree of a store, killed by its id at the end."""

    def __init__(self, url: str, *options: str, tls: Path | None = None) -> None:
        environment = {**os.environ, "DOS_CONFIG": os.devnull}
        if tls is not None:
            environment["DOS_TLS"], options = str(tls), (*options, "--tls")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        arguments = ["gateway", "serve", url, "--listen", "127.0.0.1:0", *options]
        self.process = ForkedProcess(arguments, environment, self._log.fileno())
        line = self.process.stdout.readline()
        if "dos gateway: listening for " not in line:
            raise AssertionError(f"no gateway: {line!r} {self.log().decode()}")
        self.port = int(line.split(";")[0].rsplit(":", 1)[1])
        self.client = WebHdfsClient(self.port)

    def log(self) -> bytes:
        """What it has written to its log."""
        return os.pread(self._log.fileno(), 1 << 24, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()


@contextmanager
def threaded_gateway(url: str, tree: str, **options: Any) -> Iterator[tuple[int, bytes]]:
    """Run a gateway in a thread of this process: its port, and the id of the store. options: of
    `serve_gateway`.
    """
    started: Future[tuple[int, bytes]] = Future()
    ends: list[Callable[[], None]] = []

    async def serve() -> None:
        async with open_store(url) as store, trio.open_nursery() as nursery:
            gateway = Gateway(store, tree)
            port = await nursery.start(partial(serve_gateway, gateway, "127.0.0.1", 0, **options))
            token = trio.lowlevel.current_trio_token()
            ends.append(partial(token.run_sync_soon, nursery.cancel_scope.cancel))
            started.set_result((port, store.record.store_id))

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="gateway")
    thread.start()
    try:
        yield started.result()
    finally:
        for end in ends:
            end()
        thread.join()


@contextmanager
def store_of_three(folder: Path) -> Iterator[tuple[str, list[ServerProcess]]]:
    """A store of three server processes: its URL, and the servers."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(folder / f"server-{number}")) for number in range(3)]
        trio.run(init_store, url_of(servers))
        yield url_of(servers), servers
