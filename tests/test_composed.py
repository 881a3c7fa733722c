"""The compose file without a container engine: its commands are processes, its hosts ports of loopback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dos_chaos.servers import hold_port
from tests.support.dos_command import dos
from tests.test_deploy import COMPOSE, in_containerfile

SERVERS = ("dos1", "dos2", "dos3")


class Composed:
    """The services below a directory. The hosts dos1, dos2 and dos3 are ports of 127.0.0.1."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.secrets = place / "secrets"
        self.secrets.mkdir(mode=0o700)
        self.held = {name: hold_port(0) for name in SERVERS}
        (programs := place / "bin").mkdir()
        (program := programs / "dos").write_text(f'#!/bin/sh\nexec {sys.executable} -m dos_cli "$@"\n')
        program.chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.held[name].getsockname()[1]}"

    def here(self, text: str) -> str:
        text = text.replace("/etc/dos/secrets", str(self.secrets))
        for name in SERVERS:
            text = text.replace(f"{name}:9999", self.address(name))
        return text

    def environment(self, name: str) -> dict[str, str]:
        service = COMPOSE["services"][name]
        given = {key: self.here(value) for key, value in service["environment"].items()}
        own = {"DOS_SERVE_DATA": str(self.place / name), "PATH": self.path}
        if name in SERVERS:
            own["DOS_SERVE_LISTEN"] = self.address(name)
        return {**os.environ, **given, **own}

    def words(self, name: str) -> list[str]:
        service = COMPOSE["services"][name]
        entrypoint = service.get("entrypoint", in_containerfile("ENTRYPOINT"))
        return [self.here(word) for word in (*entrypoint, *service["command"])]

    def run(self, name: str, *words: str) -> str:
        """Run a service, or other words in its environment, to its end, which is success."""
        done = subprocess.run(
            words or self.words(name), env=self.environment(name), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "can be read by every user" not in done.stderr
        return done.stdout

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.words(name), env=self.environment(name), stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    def close(self) -> None:
        for held in self.held.values():
            held.close()


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    one = Composed(tmp_path)
    yield one
    one.close()


def content(folder: Path) -> dict[Path, Any]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.process
def test_a_store_comes_up_with_tls_and_its_clients_append(
    composed: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed.run("secrets")
    made = content(composed.secrets)
    assert {path.stat().st_mode & 0o077 for path in composed.secrets.rglob("*")} == {0}
    composed.run("secrets")
    assert content(composed.secrets) == made, "a second start changes nothing"
    (composed.secrets / "tls" / "client" / "cert.pem").unlink()
    composed.run("secrets")  # the first start did not finish
    assert content(composed.secrets).keys() == made.keys()
    with (
        composed.running("dos1") as one,
        composed.running("dos2") as two,
        composed.running("dos3") as three,
    ):
        for process in (one, two, three):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("dos: serving ")
        probe = [
            word.replace("127.0.0.1:9999", composed.address("dos1"))
            for word in in_containerfile("HEALTHCHECK")
        ]
        composed.run("dos1", *probe)
        composed.run("init")
        composed.run("watch", *composed.words("watch"), "--once")
        monkeypatch.setenv("DOS_CONTEXTS", str(tmp_path / "contexts.toml"))
        url = composed.here(COMPOSE["services"]["watch"]["environment"]["DOS_STORE"])
        words = ("--token-file", composed.secrets / "token", "--tls", composed.secrets / "tls" / "client")
        added = dos("context", "add", "prod", url, *words, "--use")  # as docs/installing.md
        assert added.returncode == 0, added.stderr
        (file := tmp_path / "greeting").write_text("hello\n")
        appended = dos("append", "dos:///notes/greetings", file)
        assert appended.returncode == 0, appended.stderr
        assert dos("get", "dos:///notes/greetings").stdout == "hello\n"
        refused = dos("ls", url, "--token-file", composed.secrets / "token")
        assert "this server accepts TLS only" in refused.stderr
