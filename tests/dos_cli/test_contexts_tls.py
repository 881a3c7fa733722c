"""Contexts and dos.toml name the files of TLS beside a store: real servers that accept TLS only."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, url_of

__all__ = ["certificates"]
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, token: Path, certificates: Certificates) -> Iterator[str]:
    """The URL of a store of two servers that accept only TLS, certificates of clients, and the token."""
    options = ("--tls", str(certificates.server), "--tls-client-auth", "--token-file", str(token))
    place = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(place / name, options=options)) for name in ("one", "two")
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOS_TLS", str(certificates.client))
            done = dos("store", "init", url_of(servers), "--token-file", token)
        assert done.returncode == 0, done.stderr
        yield url_of(servers)


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """dos.toml, which does not exist yet; nor do the contexts."""
    monkeypatch.setenv("DOS_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.setenv("DOS_CONFIG", str(tmp_path / "dos.toml"))
    (tmp_path / "dos.toml").touch()
    return tmp_path / "dos.toml"


def test_a_context_has_the_certificates_of_its_store(
    store: str, token: Path, certificates: Certificates
) -> None:
    words = ("--token-file", token, "--tls", certificates.client, "--use")
    added = dos("context", "add", "prod", store, *words)
    assert added.returncode == 0, added.stderr
    assert (done := dos("append", "dos:///notes/greetings", token)).returncode == 0, done.stderr
    assert dos("get", "dos:///notes/greetings").stdout == "open sesame, my 3 friends\n"
    assert "DOS_TLS" not in os.environ, "the command has ended"
    shown = json.loads(dos("context", "show", "--json").stdout)
    assert shown["tls"] == {"DOS_TLS": str(certificates.client)}
    assert f"DOS_TLS={certificates.client}" in dos("context", "show").stdout
    assert json.loads(dos("context", "ls", "--json").stdout)[0]["tls"] == shown["tls"]


def test_the_files_may_be_named_one_by_one(
    store: str, token: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(certificates.client)  # paths are remembered as absolute ones
    names = ("--tls-ca", "ca.pem", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert dos("context", "add", "own", store, "--token-file", token, *names).returncode == 0
    monkeypatch.chdir("/")
    assert (done := dos("ls", "--context", "own")).returncode == 0, done.stderr


def test_dos_toml_has_them_too(store: str, token: Path, certificates: Certificates, files: Path) -> None:
    text = f'store = "{store}"\ntoken_file = "{token}"\n'
    files.write_text(text)
    assert "this server accepts TLS only" in dos("ls").stderr
    files.write_text(f'{text}tls = "{certificates.client}"\n')
    assert (done := dos("ls")).returncode == 0, done.stderr


def test_variables_come_before_the_context_and_are_not_mixed_with_it(
    store: str, token: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    dos("context", "add", "prod", store, "--token-file", token, "--tls", certificates.client, "--use")
    monkeypatch.setenv("DOS_TLS_CA", str(certificates.foreign.directory / "ca.pem"))
    refused = dos("ls")
    assert refused.returncode != 0
    assert "authority" in refused.stderr
    assert os.environ["DOS_TLS_CA"] == str(certificates.foreign.directory / "ca.pem")
    monkeypatch.setenv("DOS_TLS_CA", str(certificates.client / "ca.pem"))
    assert "certificate" in dos("ls").stderr, "it sends none: the one of the context is not used"


def test_a_store_that_is_named_otherwise_gets_no_certificate(
    store: str, token: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    dos("context", "add", "prod", "dos://127.0.0.1:1", "--tls", certificates.client, "--use")
    assert "this server accepts TLS only" in dos("ls", store).stderr
    monkeypatch.setenv("DOS_STORE", store)
    assert "this server accepts TLS only" in dos("ls").stderr


def test_a_store_with_tls_never_falls_back_to_plain_text(
    tmp_path: Path, token: Path, certificates: Certificates
) -> None:
    with ServerProcess(tmp_path / "plain", options=("--token-file", str(token))) as plain:
        words = ("--token-file", token, "--tls", certificates.client, "--use")
        assert dos("context", "add", "prod", plain.url, *words).returncode == 0
        refused = dos("ls")
    assert refused.returncode == 3
    assert "sends plain text, but this end uses TLS" in refused.stderr


def test_files_that_cannot_be_used_are_refused_when_they_are_named(
    tmp_path: Path, certificates: Certificates
) -> None:
    (tmp_path / "empty").mkdir()
    (bad := tmp_path / "bad.pem").write_text("no PEM")
    ca, cert = certificates.client / "ca.pem", certificates.client / "cert.pem"
    for words, expected in (
        (("--tls", tmp_path / "empty"), "empty/ca.pem cannot be used"),
        (("--tls-ca", ca, "--tls-cert", cert), "a certificate together with its key"),
        (("--tls-ca", bad), "bad.pem cannot be used"),
        (("--tls-cert", cert, "--tls-key", certificates.client / "key.pem"), "the authorities to trust"),
    ):
        refused = dos("context", "add", "prod", "dos://h1", *words)
        assert refused.returncode == 2
        assert expected in refused.stderr.replace("\n", " ")
    assert dos("context", "ls").stdout.count("prod") == 0


def test_names_are_completed_over_tls(store: str, token: Path, certificates: Certificates) -> None:
    dos("context", "add", "prod", store, "--token-file", token, "--tls", certificates.client, "--use")
    assert dos("append", "dos:///wordcount.coord/manifest", token).returncode == 0
    line = "dos region status w"
    words = {"_DOS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    command = [sys.executable, "-m", "dos_cli"]
    done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["wordcount"], "")
