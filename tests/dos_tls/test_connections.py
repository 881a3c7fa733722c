"""Connections to a server over TLS: what works, and each way in which it does not, at both ends."""

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from dos_client import Store, init_store, metrics, open_connection, open_store
from dos_protocol.errors import DosError, TlsRequiredError
from dos_protocol.frames import FrameDecoder
from dos_protocol.messages import Error, decode
from dos_server import embedded
from dos_tls import (
    CertificateAuthorityError,
    CertificateExpiredError,
    CertificateNameError,
    CertificateNotYetValidError,
    CertificateRejectedError,
    CertificateRequiredError,
    PlainTextPeerError,
    ServerContext,
    TlsSettings,
    TlsSettingsError,
)
from dos_tls.authority import AUTHORITY_DAYS, CERTIFICATE_DAYS
from tests.support.certificates import HERE, Certificates, certificates
from tests.support.dos_command import dos
from tests.support.http import fetch_url
from tests.support.polling import until

__all__ = ["certificates"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@contextmanager
def serving(folder: Path, tls: ServerContext | None) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(folder, tls=tls) as server:
        yield server


def use(monkeypatch: pytest.MonkeyPatch, directory: Path | None, **more: str) -> None:
    """Let clients of this process use the files of a directory."""
    for name in ("DOS_TLS", "DOS_TLS_CA", "DOS_TLS_CERT", "DOS_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    if directory is not None:
        monkeypatch.setenv("DOS_TLS", str(directory))
    for name, value in more.items():
        monkeypatch.setenv(name, value)


def ping(address: str) -> bytes:
    """Open a session, ask, and return the server's id."""

    async def work() -> bytes:
        async with open_connection(address) as connection:
            await connection.ping()
            return connection.server_id

    return trio.run(work)


def warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the server has logged one warning with this text."""

    def lines() -> list[str]:
        records = [one for one in caplog.records if one.name == "dos.server"]
        return [one.getMessage() for one in records if one.levelno >= logging.WARNING]

    until(lambda: any(text in line for line in lines()), f"a warning with {text!r}", 20)
    assert [line for line in lines() if not line.startswith("the TLS files have changed")] == [
        line for line in lines() if text in line
    ]
    assert sum(text in line for line in lines()) == 1, lines()


def address_of(server: embedded.EmbeddedServer) -> str:
    return server.url.removeprefix("dos://")


def test_a_session_over_tls_with_and_without_a_certificate_of_the_client(
    certificates: Certificates, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mutual in (False, True):
        with serving(folder, certificates.context(client_certificates=mutual)) as server:
            use(monkeypatch, certificates.client)
            assert ping(address_of(server)).hex() == server.server_id
            if not mutual:
                use(monkeypatch, None, DOS_TLS_CA=str(certificates.client / "ca.pem"))
                assert ping(address_of(server)).hex() == server.server_id


Make = Callable[[Certificates], Path]

SERVERS: list[tuple[Make, type[DosError], str]] = [
    (lambda c: c.expired.directory / "servers" / HERE, CertificateExpiredError, "has expired"),
    (
        lambda c: c.future.directory / "servers" / HERE,
        CertificateNotYetValidError,
        "not valid yet",
    ),
    (lambda c: c.client, CertificateNameError, "not for the expected name"),
    (lambda c: c.foreign_server, CertificateAuthorityError, "does not trust the authority"),
]


@pytest.mark.parametrize(("make", "error", "log"), SERVERS, ids=[error.__name__ for _, error, _ in SERVERS])
def test_a_server_that_cannot_be_trusted_is_refused_by_name_at_both_ends(
    make: Make,
    error: type[DosError],
    log: str,
    certificates: Certificates,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, certificates.client)
    with serving(folder, certificates.reloaded(make(certificates))) as server:
        with pytest.raises(error) as refused:
            ping(address_of(server))
        assert address_of(server) in str(refused.value)
        assert refused.value.remedy
        warned(caplog, log)


CLIENTS: list[tuple[Make | None, type[DosError], str]] = [
    (None, CertificateRequiredError, "has no certificate"),
    (lambda c: c.expired.directory / "client", CertificateRejectedError, "has expired"),
    (lambda c: c.future.directory / "client", CertificateRejectedError, "is not valid yet"),
    (lambda c: c.foreign_client, CertificateRejectedError, "authority that is not trusted here"),
]


@pytest.mark.parametrize("reloaded", [False, True], ids=["at the start", "after a reload"])
@pytest.mark.parametrize(("make", "error", "log"), CLIENTS, ids=["none", "expired", "future", "foreign"])
def test_a_client_that_cannot_be_trusted_is_refused_by_name_at_both_ends(
    reloaded: bool,
    make: Make | None,
    error: type[DosError],
    log: str,
    certificates: Certificates,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, make and make(certificates), DOS_TLS_CA=str(certificates.client / "ca.pem"))
    context = certificates.reloaded if reloaded else certificates.context
    with serving(folder, context(client_certificates=True)) as server:
        with pytest.raises(error) as refused:
            ping(address_of(server))
        assert refused.value.remedy
        warned(caplog, log)


def test_plain_text_to_a_tls_port_is_answered_with_the_reason(
    certificates: Certificates, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(folder, certificates.context()) as server:
        with pytest.raises(TlsRequiredError, match="DOS_TLS"):
            ping(address_of(server))
        warned(caplog, "sends plain text")
        with socket.create_connection(server.address) as version0:
            version0.sendall(b"\0\4HELP")
            assert b"ERROR: this server accepts TLS only" in read_all(version0)
        with socket.create_connection(server.address) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            decoder = FrameDecoder()
            answer = read_all(browser)
            decoder.writable()[: len(answer)] = answer
            decoder.wrote(len(answer))
            frame = decoder.next_frame()
            assert frame is not None
            assert isinstance(decode(frame), Error)


def test_tls_to_a_plain_text_port_is_an_error_and_never_a_fallback(
    certificates: Certificates,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, certificates.client)
    with serving(folder, None) as server:
        with pytest.raises(PlainTextPeerError, match="use plain text here: unset DOS_TLS"):
            ping(address_of(server))
        warned(caplog, "uses TLS, but this server does not")


def test_settings_that_name_no_files_are_refused_before_anything_is_sent(
    certificates: Certificates, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server((HERE, 0)) as listener:
        for given in ("", str(tmp_path)):
            use(monkeypatch, None, DOS_TLS=given)
            with pytest.raises(TlsSettingsError):
                ping(f"{HERE}:{listener.getsockname()[1]}")
        listener.settimeout(20)
        peer, _ = listener.accept()  # of the second: its files are read when a server is there
        with peer:
            assert read_all(peer) == b""


def read_all(sock: socket.socket) -> bytes:
    sock.settimeout(20)
    found = b""
    while data := sock.recv(4096):
        found += data
    return found


def test_metrics_are_not_served_as_plain_text_to_other_machines(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, certificates.client)
    with pytest.raises(TlsSettingsError, match="plain text"):
        metrics.serve(0, "0.0.0.0")
    metrics.serve(0).close()


def test_an_end_that_accepts_connections_does_not_begin_with_an_expired_certificate(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expired = certificates.expired.directory / "servers" / HERE
    with pytest.raises(TlsSettingsError, match="has expired"):
        certificates.context(expired)
    refused = dos("serve", "--data", tmp_path / "data", "--listen", f"{HERE}:0", "--tls", expired)
    assert (refused.returncode, "renew it (dos tls renew)" in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()
    use(monkeypatch, certificates.expired.directory / "client")
    refused = dos("ui", f"dos://{HERE}:1", "--listen", f"{HERE}:0", "--tls")
    assert (refused.returncode, "has expired" in refused.stderr) == (2, True)


@pytest.mark.parametrize("days", [13.0, -1.0])
def test_both_ends_warn_of_a_certificate_that_expires_soon_or_has_expired(
    days: float,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    ours = Certificates(tmp_path / "tls")
    for host in (HERE, "client"):
        ours.authority.renew(host, days=days + 9, begins=datetime.now(UTC) - timedelta(days=9))
    use(monkeypatch, ours.client)
    context = ours.reloaded()
    with serving(folder, context) as server, suppress(CertificateExpiredError):
        ping(address_of(server))
        ping(address_of(server))
    lines = [one.getMessage() for one in caplog.records if one.name == "dos.tls"]
    text = "expires in 13.0 days" if days > 0 else "has expired"
    for path in (ours.client / "cert.pem", context.settings.certificate):
        assert len([line for line in lines if f"{path} {text}" in line]) == 1, lines


def test_metrics_and_readiness_show_when_certificates_expire(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "dos_tls_expiry_timestamp_seconds"
    with closing(metrics.serve(0)) as served:
        at = f"http://{HERE}:{served.port}"
        assert name not in fetch_url(f"{at}/metrics")[1]
        use(monkeypatch, certificates.client)
        found = dict(re.findall(rf'{name}{{what="(\w+)"}} (\S+)', fetch_url(f"{at}/metrics")[1]))
        days = {what: round((float(ends) - time.time()) / 86_400) for what, ends in found.items()}
        assert days == {"certificate": CERTIFICATE_DAYS, "authority": AUTHORITY_DAYS}
        assert fetch_url(f"{at}/readyz") == (200, "ok\n")
        use(monkeypatch, certificates.expired.directory / "client")
        code, why = fetch_url(f"{at}/readyz")
        assert (code, "cert.pem has expired" in why) == (503, True)
        assert fetch_url(f"{at}/healthz") == (200, "ok\n"), "a restart does not renew it"


SAFE = ("--token-file", "--tls-client-auth")


@pytest.mark.parametrize("given", [(), ("--tls",), *((("--tls", one)) for one in SAFE)])
def test_other_machines_may_connect_only_to_what_is_protected(
    given: tuple[str, ...], certificates: Certificates, tmp_path: Path
) -> None:
    """Without --insecure; the port is taken, so that a server which may listen there ends, too."""
    token = tmp_path / "token"
    token.write_text("a secret of the tests\n")
    values = {"--tls": [str(certificates.server)], "--token-file": [str(token)], "--tls-client-auth": []}
    options = [word for one in given for word in (one, *values[one])]
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"0.0.0.0:{taken.getsockname()[1]}"
        refused = dos("serve", "--data", tmp_path / "data", "--listen", address, *options)
    assert refused.returncode == 2
    assert ("cannot listen" in refused.stderr) is (len(given) == 2), refused.stderr
    assert ("--insecure" in refused.stderr) is (len(given) < 2), refused.stderr


@pytest.mark.parametrize(
    "options", [("--tls-client-auth",), ("--tls", "missing"), ("--tls-ca", "ca.pem"), ("--tls-cert", "c.pem")]
)
def test_a_server_with_incomplete_settings_does_not_start(options: tuple[str, ...], tmp_path: Path) -> None:
    refused = dos("serve", "--data", tmp_path / "data", "--listen", f"{HERE}:0", *options)
    assert refused.returncode == 2
    assert "tls" in refused.stderr.lower()
    assert not (tmp_path / "data").exists()


def test_a_server_in_an_environment_that_demands_tls_speaks_no_plain_text(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, certificates.client)
    refused = dos("serve", "--data", tmp_path / "data", "--listen", f"{HERE}:0")
    assert (refused.returncode, "pass --tls DIR" in refused.stderr) == (2, True)


def test_a_store_survives_a_moment_without_the_files_of_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person replaces them: what connects meanwhile fails, and succeeds afterwards."""
    ours = Certificates(tmp_path / "tls")
    use(monkeypatch, ours.client)
    away = ours.client.with_name("away")

    async def work(server: embedded.EmbeddedServer) -> bytes:
        await init_store(server.url)
        async with open_store(server.url) as store:
            async with await store.claim("app", 1, b"u" * 16) as claim:
                writer = claim.open_object("o")
                await writer.wait_synced(writer.append(b"before "))
            ours.client.rename(away)
            with pytest.raises(TlsSettingsError, match=r"cert\.pem|ca\.pem"):
                async with open_connection(address_of(server)):
                    pass
            await writer_refused(store)
            away.rename(ours.client)
            async with await store.claim("app", 3, b"w" * 16) as claim:
                writer = claim.open_object("p")
                await writer.wait_synced(writer.append(b"after"))
            return await store.read("app", "o", 0, 100) + await store.read("app", "p", 0, 100)

    async def writer_refused(store: Store) -> None:
        with trio.move_on_after(1.0), suppress(DosError):
            async with await store.claim("app", 2, b"v" * 16):
                pass

    with serving(tmp_path / "data", ours.context(client_certificates=True)) as server:
        assert trio.run(work, server) == b"before after"


def test_two_authorities_are_trusted_while_a_store_changes_over(
    certificates: Certificates, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    theirs = certificates.foreign_client
    both.write_bytes(b"".join((one / "ca.pem").read_bytes() for one in (certificates.client, theirs)))
    for server in (certificates.server, certificates.foreign_server):
        own = (str(server / "cert.pem"), str(server / "key.pem"))
        context = ServerContext(TlsSettings(str(both), *own), client_certificates=True)
        with serving(folder, context) as running:
            for client in (certificates.client, theirs):
                use(monkeypatch, client, DOS_TLS_CA=str(both))
                assert ping(address_of(running)).hex() == running.server_id
