"""A server inside this process, on its own thread: the default store of a local Spark session, and for tests.

It runs the same server as `dos serve`. It does not scrub by default, because a store of one copy has nothing
to repair from.
"""

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import trio

from dos_protocol.arguments import address_text
from dos_protocol.names import id_text
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.disk import RealDisk
from dos_server.limits import connections_waiting_max, log_bytes_embedded
from dos_server.server import ObjectServer
from dos_server.storage import Storage
from dos_tls import ServerContext

LOG_BYTES: Final = log_bytes_embedded
"""A size of the group log for a server that is the only one of its store."""


class DataDirectoryInUseError(Exception):
    """Another server uses the data directory."""


class OpenServer:
    """A server whose data directory is locked and whose listener is bound, but which does not serve yet.
    Raises DataDirectoryInUseError, CorruptDataError, OSError; nothing stays open then.
    """

    def __init__(
        self,
        data: Path,
        host: str,
        port: int,
        **options: Any,
    ) -> None:
        self._disk = RealDisk(data)
        try:
            self._lock = self._disk.lock("lock")
        except BlockingIOError as error:
            self._disk.shut()
            raise DataDirectoryInUseError(f"data directory {data} is in use by another server") from error
        except BaseException:
            self._disk.shut()
            raise
        try:
            self.listener = listen_on(host, port)
            self.server = ObjectServer(Storage(self._disk), **options)
        except BaseException:
            self.shut()
            raise

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self.listener.getsockname()
        return host, port

    def shut(self) -> None:
        listener = getattr(self, "listener", None)
        if listener is not None:
            listener.close()
        self._disk.close(self._lock)
        self._disk.shut()


def listen_on(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(connections_waiting_max)
    except BaseException:
        listener.close()
        raise
    return listener


class EmbeddedServer:
    def __init__(self, opened: OpenServer) -> None:
        self._opened = opened
        self.address = opened.address
        self.server_id = id_text(opened.server.server_id)
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dos-server", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def url(self) -> str:
        return f"dos://{address_text(*self.address)}"

    def stop(self) -> None:
        if self._token is not None and self._thread.is_alive():
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        finally:
            self._started.set()
            self._opened.shut()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._started.set()
        with self._scope:
            await self._opened.server.serve(self._opened.listener)

    def __enter__(self) -> "EmbeddedServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    data_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: bytes = b"",
    version0: bool = True,
    scrub: ScrubPlan = NO_SCRUB,
    log_bytes: int = 0,
    tls: ServerContext | None = None,
) -> EmbeddedServer:
    """Serve the data directory from a thread of this process. Connections are accepted when this returns.

    `port` 0 picks a free port. `log_bytes`: size of the group log; 0: every object is synced in its own file.
    If a sync of the log fails, or the directory is moved, the server ends and the reason is logged; after a
    start, what was acknowledged is there. Raises DataDirectoryInUseError, CorruptDataError, OSError.
    """
    opened = OpenServer(
        data_dir, host, port, token=token, version0=version0, scrub=scrub, log_bytes=log_bytes, tls=tls
    )
    return EmbeddedServer(opened)
