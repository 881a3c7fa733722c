"""Secrets that every user of the machine can read: a warning, once for each file, and no refusal. And what is
replaced durably is a file.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dos_chaos.servers import ServerProcess
from dos_tls import warn_if_open
from dos_tls.files import replace_durably
from tests.support.certificates import Certificates, certificates
from tests.support.dos_command import dos

__all__ = ["certificates"]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "dos.tls"]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o444])
def test_a_file_that_everyone_can_read_is_named_once_with_the_remedy(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "token").write_text("open sesame")
    (link := tmp_path / "link").symlink_to(file)
    file.chmod(mode)
    for path in (file, str(file), link):
        warn_if_open(path, "the token file")
    assert warned(caplog) == [
        f"the token file {file} can be read by every user of this machine (mode {mode:04o}): chmod 600 {file}"
    ]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440, 0o660])
def test_a_file_of_its_owner_and_group_is_not(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (file := tmp_path / "token").write_text("open sesame")
    file.chmod(mode)
    warn_if_open(file, "the token file")
    assert not warned(caplog)


def test_what_is_no_file_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    pipe.chmod(0o644)
    for path in (pipe, tmp_path / "missing", tmp_path):
        warn_if_open(path, "the token file")
    assert not warned(caplog)


@pytest.mark.process
def test_servers_and_commands_warn_of_their_tokens_and_keys(
    tmp_path: Path, certificates: Certificates
) -> None:
    token, tokens = tmp_path / "token", tmp_path / "tokens.json"
    assert dos("token", "add", tokens, "operator", "--grant", "*:all", "--out", token).returncode == 0
    client, server = (tmp_path / name for name in ("client", "server"))
    for source, copy in ((certificates.client, client), (certificates.server, server)):
        copy.mkdir()
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (copy / name).write_bytes((source / name).read_bytes())
            (copy / name).chmod(0o644)
    token.chmod(0o644)
    tokens.chmod(0o644)
    secrets = (token, tokens, client / "key.pem", server / "key.pem")
    lines = [f" {path} can be read by every user of this machine (mode 0644): chmod 600" for path in secrets]

    def ls() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dos_cli", "ls", one.url, "--token-file", token],
            env={**os.environ, "DOS_TLS": str(client)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    options = ("--tls", str(server), "--tokens", str(tokens))
    with ServerProcess(tmp_path / "data", options=options) as one:
        assert [ls().count(line) for line in lines] == [1, 0, 1, 0]
        log = one.log_path.read_text()
        assert [log.count(line) for line in lines] == [0, 1, 0, 1]
        for path in secrets:
            path.chmod(0o600)
        assert ls() == ""


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """Root would have made a file of the device /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is no file, and is not replaced by one"):
        replace_durably(pipe, b"contexts")
    assert pipe.is_fifo()
