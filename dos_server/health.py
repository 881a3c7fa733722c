"""The HTTP port of a server: /metrics for Prometheus, /healthz and /readyz for what starts and watches it.

| path | answer |
|---|---|
| /metrics | the metrics, as text |
| /healthz | 200 while the event loop runs, otherwise 503 with the reason: restart the server |
| /readyz | 200 while clients can use the server, otherwise 503 with the reason |

It is plain HTTP without a password, in threads of its own: an event loop that hangs does not keep it from
answering.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dos_server.figures import ServerFigures, registry_of

_REQUEST_S_MAX: Final = 10.0


class HealthServer:
    """Serves one server's figures until `close`. Raises OSError if the port cannot be used."""

    def __init__(self, figures: ServerFigures, host: str, port: int) -> None:
        registry = registry_of(figures)

        def answer(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            if path in ("/healthz", "/readyz"):
                why = figures.hangs() if path == "/healthz" else figures.not_ready()
                return 503 if why else 200, "text/plain; charset=utf-8", f"{why or 'ok'}\n".encode()
            return 404, "text/plain; charset=utf-8", b"there are /metrics, /healthz and /readyz\n"

        class Handler(_Handler):
            answers = staticmethod(answer)

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.address = host, self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, name="dos health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
