"""Regions, inputs and store commands over TLS, on real servers and processes, and what a listener in between
sees.
"""

import contextlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from checkpoint.core.region import ResetReport
from dataflow import EntryPoints, FileSink, FileSource, Graph, LogSink, blocking
from dos_tls.authority import Authority
from tests.dataflow.support import last_counts, made, true_counts
from tests.dataflow.test_input_cli import serving
from tests.dataflow.test_region_processes import finished, hurry, running, slow_word_count
from tests.support.certificates import HERE, Certificates, certificates
from tests.support.dos_command import dos
from tests.support.http import fetch_url
from tests.support.needs import lacking
from tests.support.polling import until
from tests.support.servers import ServerProcess, hold_port, three_servers

__all__ = ["certificates", "three_servers"]
pytestmark = pytest.mark.process
WAIT_S = 60.0


@pytest.fixture(scope="module")
def tls_servers(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ServerProcess]]:
    """Three servers that demand certificates, and DOS_TLS for all that this process and its children do."""
    folder = tmp_path_factory.mktemp("servers")
    options = ("--tls", str(certificates.server), "--tls-client-auth")
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOS_TLS", str(certificates.client))
        yield [stack.enter_context(ServerProcess(folder / f"s{one}", options=options)) for one in range(3)]


@pytest.fixture(scope="module")
def tls_store(tls_servers: list[ServerProcess]) -> str:
    return made(tls_servers)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.mktemp("texts") / f"{number}.txt" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_text(f"tea rice tea w{number}\n" * 12_000)
    return paths


@pytest.mark.usefixtures("forks")
def test_a_killed_worker_is_replaced_over_tls(tls_store: str, texts: list[Path], tmp_path: Path) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, tls_store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        os.kill(control.status.workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        hurry(tmp_path / "out")
        assert finished(control), control.status
    assert last_counts(tmp_path / "out") == dict(true_counts(texts, 3))


def test_a_region_whose_certificate_has_expired_shows_it_while_it_runs(
    certificates: Certificates,
    tls_servers: list[ServerProcess],
    tls_store: str,
    texts: list[Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its sessions continue, and none that ends is replaced: one server restarts."""
    hosts = Authority(certificates.authority.directory)
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, tls_store, tmp_path, metrics="127.0.0.1:0") as (control, watch):
        watch.checkpoints(1)
        ready = f"http://{control.status.metrics}/readyz"
        assert fetch_url(ready) == (200, "ok\n")
        hosts.renew("client", days=1, begins=datetime.now(UTC) - timedelta(days=2))
        try:
            tls_servers[0].restart()
            until(lambda: control.status.access_problem, "the status shows it", WAIT_S)
            assert control.status.state.value == "RUNNING"
            text = "rejects the certificate of this end, because it has expired by the clock there"
            assert (
                f"{tls_servers[0].location}: {tls_servers[0].location} {text}"
                in control.status.access_problem
            )
            code, why = fetch_url(ready)
            assert (code, text in why) == (503, True)
            lines = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
            assert any(text in line for line in lines)
            assert any("client/cert.pem has expired" in line for line in lines)
        finally:
            hosts.renew("client")
        until(lambda: not control.status.access_problem, "the renewed one is used", WAIT_S)
        hurry(tmp_path / "out")
        assert finished(control), control.status


class Listening:
    """Records whether any packet on the loopback interface contains a text."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.seen = self.packets = 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        except PermissionError:
            lacking("only root may listen on an interface")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        # Tests beside this one may use the interface without a pause. What waits at the end is no more than
        # the buffer holds.
        left = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        while left > 0:
            try:
                packet = self._socket.recv(1 << 17)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            self.packets += 1
            self.seen += self._text in packet
            if self._over.is_set():
                left -= len(packet)

    def __enter__(self) -> "Listening":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


def rows_of_a_secret(secret: str, folder: Path) -> Graph:
    """Rows that pass from worker to worker, into journals and into an output of the store."""
    paths = [folder / "a.txt", folder / "b.txt"]
    for number, path in enumerate(paths):
        path.write_text(f"{secret}{number}\nother\n" * 300)
    graph = Graph("secret")
    lines = graph.source("lines", FileSource(paths))
    counts = lines.key_by("by_line", "line").count("counts")
    counts.sink("log", LogSink())
    counts.sink("out", FileSink(folder / "out"))
    return graph


def test_nobody_in_between_sees_a_row(
    tls_store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = os.urandom(16).hex()
    for name in ("tls", "plain"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "plain":
            monkeypatch.delenv("DOS_TLS")
        store = tls_store if name == "tls" else made(request.getfixturevalue("three_servers"))
        graph = rows_of_a_secret(secret, folder)
        with (
            Listening(secret.encode()) as listening,
            running(graph, store, folder, workers=2) as (control, _),
        ):
            assert finished(control), control.status
        assert last_counts(folder / "out")[f"{secret}0"] == 300
        assert listening.packets > 100
        assert bool(listening.seen) is (name == "plain"), (name, listening.seen)


def test_store_commands_over_tls(
    tls_store: str, certificates: Certificates, tls_servers: list[ServerProcess], tmp_path: Path
) -> None:
    servers = tls_store.removeprefix("dos://")
    for command in ("status", "verify"):
        shown = dos("store", command, tls_store)
        assert shown.returncode == 0, shown.stderr + shown.stdout
    options = ("--tls", str(certificates.server), "--tls-client-auth")
    with ServerProcess(tmp_path / "new", options=options) as new:
        replaced = dos("store", "replace", tls_store, tls_servers[2].location, new.location)
        assert replaced.returncode == 0, replaced.stderr + replaced.stdout
        watched = dos("store", "watch", tls_store, "--once")
        assert watched.returncode == 0, watched.stderr + watched.stdout
        assert new.location in dos("store", "status", tls_store).stdout
        tls_servers[2].kill()
        tls_servers[2].data.rename(tmp_path / "old")
        tls_servers[2].restart()
        back = dos("store", "replace", tls_store, new.location, tls_servers[2].location)
        assert back.returncode == 0, back.stderr + back.stdout
    with pytest.MonkeyPatch.context() as plain:
        plain.delenv("DOS_TLS")
        refused = dos("store", "status", tls_store)
        assert refused.returncode == 3
        assert "this server accepts TLS only (use TLS: set DOS_TLS" in refused.stdout + refused.stderr
        assert servers.split(",")[0] in refused.stdout + refused.stderr


def test_lines_over_tls_need_a_certificate_and_are_never_taken_as_plain_text(
    tls_store: str, certificates: Certificates
) -> None:
    refused = dos("input", "serve", tls_store, "shop", "lines", "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "DOS_TLS demands TLS" in refused.stderr
    with serving(tls_store, "--tls", str(certificates.server)) as (process, said):
        _, _, port = said["address"].rpartition(":")
        context = ssl.create_default_context(cafile=str(certificates.client / "ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            exchange(context, int(port), b"no certificate\n")
        with socket.create_connection((HERE, int(port))) as plain:
            plain.sendall(b"plain text\n")
            assert b"1" not in b"".join(iter(lambda: plain.recv(100), b"")).splitlines()
        context.load_cert_chain(certificates.client / "cert.pem", certificates.client / "key.pem")
        assert exchange(context, int(port), b"tea 3\n") == b"1\n"
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=WAIT_S)
    assert "has no certificate" in logged
    assert "sends plain text" in logged


def exchange(context: ssl.SSLContext, port: int, data: bytes) -> bytes:
    with socket.create_connection((HERE, port)) as plain:
        plain.settimeout(WAIT_S)
        with context.wrap_socket(plain, server_hostname=HERE) as stream:
            stream.sendall(data)
            return stream.recv(100)


def test_an_entry_point_of_a_site_and_its_producer_over_tls(tls_store: str) -> None:
    with hold_port(0) as held:
        address = f"{HERE}:{held.getsockname()[1]}"
        options = ("--site", "s1", "--listen", address, "--marks-every", "0.1")
        with serving(tls_store, *options):
            points = EntryPoints(address)
            with blocking.open_producer(points, "shop", "lines", "p1", "kind string") as producer:
                producer.send([{"kind": "tea"}])
                producer.wait_recorded()
            shown = dos("input", "entries", address, "shop", "lines")
            assert "p1" in shown.stdout, shown.stderr
            with pytest.MonkeyPatch.context() as plain:
                plain.delenv("DOS_TLS")
                refused = dos("input", "entries", address, "shop", "lines")
            assert refused.returncode != 0
            assert "uses TLS and the other does not" in refused.stdout + refused.stderr
