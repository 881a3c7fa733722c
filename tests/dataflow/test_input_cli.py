"""`dos input`: an entry point as a command; tried with real servers, sockets and signals."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dataflow.input_cli import app


@contextmanager
def serving(store: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """`dos input serve --json`, once it listens, and what it said."""
    command = [sys.executable, "-m", "dos_cli", "input", "serve", store, "shop", "lines", "--json"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def dos(*arguments: str) -> Result:
    """In this process."""
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, arguments)


def send(address: str, data: bytes) -> bytes:
    """All that comes back."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(100), b""))


@pytest.mark.process
def test_lines_are_taken_until_a_signal_and_none_when_the_input_is_closed(shared_store: str) -> None:
    with serving(shared_store, "--name", "first") as (old, said):
        assert said["name"] == "first"
        assert said["address"].startswith("127.0.0.1:")
        assert send(said["address"], b"tea 3\nrice 7\n").splitlines()[-1] == b"2"
        taken = dos("serve", shared_store, "shop", "lines", "--listen", said["address"], "--name", "other")
        assert (taken.exit_code, taken.stdout) == (2, "")
        assert "cannot listen" in taken.stderr
        assert said["address"] in taken.stderr
        with serving(shared_store, "--name", "first") as (new, now):
            send(said["address"], b"lost\n")
            _, words = old.communicate()
            assert old.returncode == 1
            assert words.startswith("dos: "), words
            assert send(now["address"], b"milk 1\n").splitlines()[-1] == b"1"
            new.send_signal(signal.SIGTERM)
            out, words = new.communicate()
            assert (new.returncode, json.loads(out), words) == (0, {"stopped": True, "lines": 1}, "")
    closed = dos("close", shared_store, "shop", "lines", "--json")
    assert json.loads(closed.stdout) == {"application": "shop", "handle": "lines", "closed": True}
    refused = dos("serve", shared_store, "shop", "lines", "--listen", "127.0.0.1:0")
    assert refused.exit_code == 1
    assert "input 'lines' is closed" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("serve", "dos://h", "shop", "lines", "--listen", "0.0.0.0:1"),
            2,
            "pass --insecure, or listen on 127.",
        ),
        (
            ("serve", "dos://h", "shop", "lines", "--listen", "7777"),
            2,
            "--listen takes HOST:PORT with a port",
        ),
        (("serve", "dos://h", "shop", "li.nes"), 2, "consists of letters, digits"),
        (("close", "dos://h/shop", "shop", "lines"), 2, "names a directory; pass the servers alone"),
    ],
)
def test_what_cannot_be_done_is_told_with_words_and_an_exit_code(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = dos(*arguments)
    assert (done.exit_code, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_shows_an_example_to_copy() -> None:
    assert "Example: dos input serve dos://h1,h2,h3 shop lines" in dos("serve", "--help").stdout
    assert "Example: dos input close dos://h1,h2,h3 shop lines" in dos("close", "--help").stdout
