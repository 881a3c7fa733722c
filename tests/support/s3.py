"""A service of S3, really served over HTTP by moto, and a front that answers wrongly on request."""

import http.client
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from moto.moto_server.threaded_moto_server import ThreadedMotoServer

BUCKET = "archives"
Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


@dataclass
class Rule:
    """What to make of answers to requests of that method for paths with `part` in them, `times` times."""

    method: str
    part: str
    make: Callable[[Answer], Answer]
    times: int = 1_000_000
    wait: threading.Event | None = None
    """The answer waits for this."""
    met: int = 0

    def answer(self, given: Answer) -> Answer:
        """What the client gets instead."""
        given = self.make(given)
        if self.wait is not None:
            self.wait.wait(60)
        return given


@dataclass
class FakeS3:
    """`endpoint` is the front. `rules`: the first that fits is used. `seen`: the methods and paths of
    requests.
    """

    endpoint: str
    rules: list[Rule] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    spans: list[tuple[str, str]] = field(default_factory=list)
    """Of each request for a range: the range and the version that it requires."""
    keys: set[str] | None = None
    """The access keys that are valid; None: any."""

    def rule(self, method: str, part: str) -> Rule | None:
        for rule in self.rules:
            if rule.method == method and rule.part in part and rule.met < rule.times:
                rule.met += 1
                return rule
        return None


def status(code: int, name: str) -> Callable[[Answer], Answer]:
    """An error as S3 words it."""
    body = f"<Error><Code>{name}</Code><Message>as the test wants it</Message></Error>".encode()
    return lambda _: (code, {"Content-Type": "application/xml", "Content-Length": str(len(body))}, body)


def cut(answer: Answer) -> Answer:
    """The connection ends in the middle of the body."""
    code, headers, body = answer
    return code, headers, body[: len(body) // 2]


def flipped(answer: Answer) -> Answer:
    """One bit of the body is another."""
    code, headers, body = answer
    return code, headers, bytes([*body[:-1], body[-1] ^ 1])


@contextmanager
def serving() -> Iterator[FakeS3]:
    """A service with one empty bucket, and the environment in which boto3 finds credentials for it."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)  # its traceback where S3 has NoSuchUpload, too
    behind = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    behind.start()
    host, port = behind.get_host_and_port()

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.seen.append((self.command, self.path))
            if "Range" in self.headers:
                fake.spans.append((self.headers["Range"], self.headers.get("If-Match", "")))
            _, _, key = self.headers.get("Authorization", "").partition("Credential=")
            if fake.keys is not None and key.partition("/")[0] not in fake.keys:
                self.send(status(403, "InvalidAccessKeyId")((403, {}, b"")))
                return
            connection = http.client.HTTPConnection(host, port)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            data, headers = response.read(), dict(response.getheaders())
            connection.close()
            rule = fake.rule(self.command, self.path)
            given: Answer = (response.status, headers, data)
            if response.status == 500 and "uploadId=" in self.path:  # moto fails where S3 has an answer
                given = status(404, "NoSuchUpload")(given)
            if rule is not None:
                given = rule.answer(given)
            self.send(given)

        def send(self, given: Answer) -> None:
            self.send_response(given[0])
            for name, value in given[1].items():
                if name.lower() not in ("connection", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given[2])
                self.close_connection = len(given[2]) < int(given[1].get("Content-Length", 0))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client had waited long enough
                super().handle()

    front = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    front.daemon_threads = True
    thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    fake = FakeS3(f"http://127.0.0.1:{front.server_address[1]}")
    before = dict(os.environ)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": fake.endpoint,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    try:
        yield fake
    finally:
        os.environ.clear()
        os.environ.update(before)
        front.shutdown()
        front.server_close()
        thread.join()
        behind.stop()
