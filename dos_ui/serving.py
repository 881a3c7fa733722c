"""Serves the page: with `serve_page` on the present trio loop, with `PageServer` in a thread of a driver."""

import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from dos_client.tasks import background_tasks
from dos_protocol.arguments import address_text
from dos_tls import TlsSettings
from dos_tls.authority import facts
from dos_ui.app import PageKey, make_app
from dos_ui.readings import LocalStatus, open_readings

logger: Final = logging.getLogger("dos.ui")
_KEY_BYTES: Final = 16


def new_key() -> str:
    return secrets.token_urlsafe(_KEY_BYTES)


async def serve_page(
    servers: Sequence[str],
    host: str,
    port: int,
    key: PageKey,
    *,
    token: bytes = b"",
    tls: TlsSettings | None = None,
    local: dict[str, LocalStatus] | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page of a store until cancelled. Reports its address, as http://HOST:PORT, once it listens.
    local: the regions that run in this process. Raises OSError if the port cannot be used.
    """
    config = Config()
    config.bind = [f"fd://{_listening(host, port).detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = 0.0
    if tls is not None:
        config.certfile, config.keyfile = tls.certificate, tls.key
    async with open_readings(servers, token=token, local=local) as readings, background_tasks() as nursery:
        app: Any = make_app(readings, key, _own_names(host, tls))
        (bound,) = await nursery.start(lambda task_status: serve(app, config, task_status=task_status))
        task_status.started(bound)
        await trio.sleep_forever()


def _own_names(host: str, tls: TlsSettings | None) -> set[str]:
    names = {host, "localhost", socket.gethostname()}
    if tls is not None:
        names.update(facts(Path(tls.certificate)).names)
    return {name.lower() for name in names}


def _listening(host: str, port: int) -> socket.socket:
    # The text of an OSError does not have the address.
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OSError(error.errno, error.strerror, address_text(host, port)) from error


class PageServer:
    """A page in a thread of its own, for the driver of a region, until `close`. `url`: its address, with the
    key.
    """

    def __init__(
        self, servers: Sequence[str], host: str, port: int, token: bytes, local: dict[str, LocalStatus]
    ) -> None:
        self._key = new_key()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._address = ""
        self._scope = trio.CancelScope()
        self._trio: trio.lowlevel.TrioToken | None = None
        args = (servers, host, port, token, local)
        self._thread = threading.Thread(target=self._run, args=args, name="dos page", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        return f"{self._address}/?key={self._key}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and wait for that."""
        if self._trio is not None:
            self._trio.run_sync_soon(self._scope.cancel)
        self._thread.join()

    def _run(self, *args: Any) -> None:
        try:
            trio.run(self._serve, *args)
        except BaseException as error:
            if self._ready.is_set():
                logger.exception("the page of %s has ended", self._address)
            self._failure = error  # raised in the thread that waits for `_ready`
        finally:
            self._ready.set()

    async def _serve(
        self, servers: Sequence[str], host: str, port: int, token: bytes, local: dict[str, LocalStatus]
    ) -> None:
        self._trio = trio.lowlevel.current_trio_token()
        key = PageKey(self._key, read_only=False)
        with self._scope:
            async with background_tasks() as nursery:
                self._address = await nursery.start(
                    lambda task_status: serve_page(
                        servers, host, port, key, token=token, local=local, task_status=task_status
                    )
                )
                self._ready.set()
                await trio.sleep_forever()
