"""Every command shows on a terminal what it does and for how long, or is in a table that says why not."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dos_server.testing import threaded_server
from tests.dos_cli.every_command import commands
from tests.support.servers import hold_port
from tests.support.terminals import shown_on_terminal
from tests.test_repository import ROOT

RUNS_ON = "runs until it is interrupted"
FILES = "reads and writes a small file of this machine"
SCREEN = "has the terminal for itself"
WITHOUT: Final = {
    "serve": RUNS_ON,
    "store watch": RUNS_ON,
    "input serve": RUNS_ON,
    "journal follow": RUNS_ON,
    "output merged": RUNS_ON,
    "sites run": RUNS_ON,
    "gateway serve": RUNS_ON,
    "ui": RUNS_ON,
    "top": SCREEN,
    "rm": "asks a question there, and one server answers",
    "fsck": "has a bar of its own, because a server's commands do not import those of clients",
    **dict.fromkeys(("token add", "token ls", "token revoke", "quota set", "quota rm", "quota ls"), FILES),
    **dict.fromkeys(("tls init", "tls add", "tls renew", "tls show"), FILES),
}
"""Command -> why a terminal shows no progress of it."""


def test_each_command_shows_progress_or_is_in_the_table() -> None:
    shows = {
        " ".join(words): getattr(command.callback, "shows_progress", False)
        for words, command in commands()
        if not getattr(command, "commands", None)
    }
    assert len(shows) > 90
    assert {name for name, does in shows.items() if not does} == WITHOUT.keys()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with hold_port(0) as held:
        held.listen(socket.SOMAXCONN)
        yield f"dos://127.0.0.1:{held.getsockname()[1]}"


CALLS: Final = {
    "region stop": ("region stop URL wordcount", r"waits for the store dos://\S+ +0:00:0[12]"),
    "journal verify": ("journal verify URL/a/b", r"reads dos://\S+/a/b +0:00:0[12]"),
    "support-bundle": (
        "support-bundle URL --output bundle.zip",
        r"runs dos store status dos://\S+ --json, at most 60 s; \d+ files so far +0:00:0[12]",
    ),
    "ping": ("ping URL", r"dos ping +0:00:0[12]"),
}
"""Name -> the command, and what a terminal shows."""


@pytest.mark.process
@pytest.mark.parametrize("name", CALLS)
def test_a_terminal_shows_what_is_waited_for_and_for_how_long(
    name: str, silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line, wanted = CALLS[name]
    shown, output = shown_on_terminal(line.replace("URL", silent).split(), wanted)
    assert re.search(wanted, shown), shown
    assert output == ""


@pytest.mark.process
def test_nothing_is_shown_of_a_quick_command_off_a_terminal_or_with_json(silent: str) -> None:
    with threaded_server() as server:
        quick, output = shown_on_terminal(["ls", server.url], "no such text")
    assert quick == output == ""
    with_json, output = shown_on_terminal(["ping", silent, "--json"], "no such text")
    assert with_json == ""
    assert "did not answer" in json.loads(output)[0]["error"]
    shown, output = shown_on_terminal(["ping", silent], "no such text")
    assert "dos ping" in shown
    assert "did not answer" not in shown
    assert "dos ping" not in output
    assert "did not answer" in output
    done = subprocess.run(
        [sys.executable, "-m", "dos_cli", "ping", silent], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert "did not answer" in done.stdout


NEED_MORE: Final = {
    "region restore-backup",
    "region scale",
    "region replace",
    "checkpoint verify",
    "context add",
    "journal trim",
    "journal archive",
    "files mirror",
    "store move",
    *("gateway ls", "gateway du", "gateway confs", "gateway status"),
}
"""Commands that refuse, before they wait, what `with_url` gives them."""


def name_of(words: list[str], url: str) -> str:
    """Return the name of the command with these words, whose first value may stand before the URL."""
    at = next(number for number, word in enumerate(words) if word.startswith(url))
    return " ".join(word for word in words[:at] if word != "1")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_command_that_takes_a_url_shows_that_it_waits(silent: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.dos_cli.every_command", silent, "0:00:01", "60"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=tmp_path,
        # Commands such as `context add` write where these say.
        env=os.environ
        | {"DOS_CONTEXTS": str(tmp_path / "contexts.toml"), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
        | {"COLUMNS": "200", "TERM": "xterm"},
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    waiting = {name_of(one["words"], silent) for one in runs if "0:00:0" in one["text"]}
    assert len(waiting) > 50
    ended = {"store status"}  # within a second, or not
    assert {name_of(one["words"], silent) for one in runs} - waiting - ended == NEED_MORE
