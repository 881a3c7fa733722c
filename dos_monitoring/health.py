"""The HTTP port of a process: /metrics for Prometheus, /healthz and /readyz for what starts and watches it.

| path | answer |
|---|---|
| /metrics | the metrics, as text |
| /healthz | 200 while the process moves, otherwise 503 with the reason: restart it |
| /readyz | 200 while it does its work, otherwise 503 with the reason |

Metrics and readiness include the certificates of this end: one that has expired is a reason not to be ready.

It is plain HTTP without a password, in threads of its own: an event loop that hangs does not keep it from
answering. It changes nothing in the process.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar, Final, TypeVar

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dos_monitoring.core.settings import MetricsListen
from dos_protocol.arguments import is_loopback
from dos_tls import TlsSettings, TlsSettingsError, expiries, expiry_problem, tls_of_environment

logger: Final = logging.getLogger("dos.monitoring")
_REQUEST_S_MAX: Final = 10.0


def nothing_wrong() -> str:
    """Return "": for a process of which only the metrics are known."""
    return ""


class CertificateFigures(Collector):
    """When the certificates of this end expire. tls: returns the settings that it uses; None: plain text."""

    def __init__(self, tls: Callable[[], TlsSettings | None]) -> None:
        self._tls = tls

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "dos_tls_expiry_timestamp_seconds", "When a certificate of this process expires", labels=["what"]
        )
        with suppress(TlsSettingsError):  # it is logged where the files are used
            settings = self._tls()
            for one in () if settings is None else expiries(settings):
                family.add_metric([one.what], one.ends_s)
        return [family] if family.samples else []

    def problem(self) -> str:
        """Return which certificate has expired; "" if none."""
        try:
            settings = self._tls()
            return "" if settings is None else expiry_problem(settings)
        except TlsSettingsError as error:
            return str(error)


class HealthServer:
    """Serves the figures of one process until `close`. Raises OSError if the port cannot be used.

    hangs, not_ready: return why the process does not move, and why it cannot be used; "" for no reason. They
    are called in threads of this server. tls: returns the settings that the process uses. Port 0 selects a
    free port: `port` has it.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        *,
        hangs: Callable[[], str] = nothing_wrong,
        not_ready: Callable[[], str] = nothing_wrong,
        tls: Callable[[], TlsSettings | None] = tls_of_environment,
    ) -> None:
        certificates, dates = CertificateFigures(tls), CollectorRegistry()
        dates.register(certificates)

        def answer(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry) + generate_latest(dates)
            if path in ("/healthz", "/readyz"):
                why = hangs() or (not_ready() or certificates.problem() if path == "/readyz" else "")
                return 503 if why else 200, "text/plain; charset=utf-8", f"{why or 'ok'}\n".encode()
            return 404, "text/plain; charset=utf-8", b"there are /metrics, /healthz and /readyz\n"

        class Handler(_Handler):
            answers = staticmethod(answer)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A peer that is gone, or sends noise, is not worth a traceback."""
                logger.debug("a request for metrics or health failed", exc_info=True)

        self._server = Server((host, port), Handler)
        self.port = self._server.server_port
        self.address = host, self.port
        self._thread = Thread(target=self._server.serve_forever, name="dos health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_health(
    listen: MetricsListen,
    registry: CollectorRegistry,
    *,
    hangs: Callable[[], str] = nothing_wrong,
    not_ready: Callable[[], str] = nothing_wrong,
) -> HealthServer:
    """Serve at the first port that is free. hangs, not_ready: as of `HealthServer`.

    Raises OSError if none is free, TlsSettingsError as `refuse_plain_text`.
    """
    refuse_plain_text(listen.host)
    for port in listen.ports[:-1]:
        try:
            return HealthServer(registry, listen.host, port, hangs=hangs, not_ready=not_ready)
        except OSError:
            continue  # in use: by another worker of this machine
    return HealthServer(registry, listen.host, listen.ports[-1], hangs=hangs, not_ready=not_ready)


def refuse_plain_text(host: str) -> None:
    """Raise TlsSettingsError for a host that other machines can reach while the environment demands TLS."""
    if not is_loopback(host) and tls_of_environment() is not None:
        raise TlsSettingsError(
            f"metrics would be served at {host} as plain text, but DOS_TLS demands TLS",
            remedy="serve them at 127.0.0.1, behind a proxy that speaks TLS",
        )


class _Handler(BaseHTTPRequestHandler):
    answers: ClassVar[Any]
    timeout = _REQUEST_S_MAX
    server_version = "dos"
    sys_version = ""

    def do_GET(self) -> None:
        status, kind, body = self.answers(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A scrape every few seconds is not worth a line."""


Answer = TypeVar("Answer")
ANSWER_S: Final = 5.0
"""How long a loop may take to answer before it counts as one that hangs."""


class SilentLoopError(Exception):
    """The event loop did not answer in time, or has ended. The text says which."""


def answer_of_loop(
    token: trio.lowlevel.TrioToken, question: Callable[[], Answer], timeout_s: float = ANSWER_S
) -> Answer:
    """Call `question` in the loop and return its result. Raises SilentLoopError, and what `question` raises.

    `question` must not block. After a time-out it may still be called.
    """
    answered = threading.Event()
    answers: list[Answer] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:
            errors.append(error)
        answered.set()

    try:
        token.run_sync_soon(ask)
    except trio.RunFinishedError:
        raise SilentLoopError("its event loop has ended") from None
    if not answered.wait(timeout_s):
        raise SilentLoopError(f"its event loop has not answered for {timeout_s:.0f} s")
    if errors:
        raise errors[0]
    return answers[0]


def silence_of(token: trio.lowlevel.TrioToken) -> str:
    """Return why an event loop does not move; "" if it does."""
    try:
        answer_of_loop(token, lambda: None)
    except SilentLoopError as silence:
        return str(silence)
    return ""
