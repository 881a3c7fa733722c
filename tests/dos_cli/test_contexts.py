"""Commands whose store a context, a variable or dos.toml names, on a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dos_chaos.servers import hold_port
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, url_of

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[str]:
    """The URL of a store of two servers, which has an object."""
    place = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(place / name, options=("--token-file", str(token))))
            for name in ("one", "two")
        ]
        url = url_of(servers)
        for words in (
            ["store", "init", url],
            ["append", f"{url}/notes/greetings", token],
            ["append", f"{url}/wordcount.coord/manifest", token],  # claims it, as the driver of a region
        ):
            done = dos(*words, "--token-file", token)
            assert done.returncode == 0, done.stderr
        yield url


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this test's contexts, which does not exist yet."""
    path = tmp_path / "dos" / "contexts.toml"
    monkeypatch.setenv("DOS_CONTEXTS", str(path))
    return path


def test_a_context_names_the_store_and_its_token(store: str, token: Path, contexts: Path) -> None:
    added = dos("context", "add", "prod", store, "--token-file", token, "--use")
    assert added.returncode == 0, added.stderr
    assert "open sesame, my 3 friends" not in contexts.read_text()
    assert dos("ls").stdout == "notes\nwordcount.coord\n"
    assert dos("get", "dos:///notes/greetings").stdout == "open sesame, my 3 friends\n"
    assert dos("store", "status", "--json").returncode == 0
    missing = dos("region", "status", "wordcounts", "--no-ask")  # the name alone: the store is put before it
    assert (missing.returncode, "wordcounts" in missing.stderr) == (1, True)
    shown = json.loads(dos("context", "show", "--json").stdout)
    assert shown == {"store": store, "tokenFile": str(token), "tls": {}, "from": "context prod"}


def test_another_context_is_used_for_one_command(store: str, token: Path) -> None:
    dos("context", "add", "nowhere", "dos://127.0.0.1:1", "--use")
    dos("context", "add", "prod", store, "--token-file", token)
    assert dos("ls").returncode == 3
    for words in (["--context", "prod", "ls"], ["ls", "--context=prod"]):
        assert dos(*words).stdout.startswith("notes\n")
    assert dos("context", "use", "prod").returncode == 0
    assert dos("ls").stdout.startswith("notes\n")
    rows = json.loads(dos("context", "ls", "--json").stdout)
    assert [(row["name"], row["current"]) for row in rows] == [("nowhere", False), ("prod", True)]
    assert dos("context", "rm", "prod").returncode == 0
    refused = dos("ls")
    assert refused.returncode == 2
    assert "no store is named (pass its URL" in refused.stderr


def test_a_token_is_not_sent_to_a_store_that_is_named_otherwise(
    store: str, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dos("context", "add", "prod", "dos://127.0.0.1:1", "--token-file", token, "--use")
    assert "reject the token" in dos("ls", store).stderr
    monkeypatch.setenv("DOS_STORE", store)
    assert "reject the token" in dos("ls").stderr
    monkeypatch.setenv("DOS_TOKEN_FILE", str(token))
    assert dos("ls").stdout.startswith("notes\n")


def test_a_context_that_the_command_does_not_use_is_refused(store: str) -> None:
    dos("context", "add", "prod", store)
    for words in (["ls", "dos://127.0.0.1:1"], ["fsck", "somewhere"]):
        refused = dos("--context", "prod", *words)
        assert refused.returncode == 2
        assert "context prod is not used" in refused.stderr


def test_names_are_completed_in_the_store_of_the_context(store: str, token: Path) -> None:
    dos("context", "add", "prod", store, "--token-file", token, "--use")

    def completions(line: str) -> list[str]:
        words = {"_DOS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        command = [sys.executable, "-m", "dos_cli"]
        done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert completions("dos context use p") == ["prod"]
    assert completions("dos region status w") == ["wordcount"]
    assert completions("dos store wa") == ["watch"]


def test_a_service_takes_its_options_from_variables_and_dos_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold_port(0) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        (file := tmp_path / "dos.toml").write_text(
            f'store = "dos://{address}"\n[serve]\ndata = "{tmp_path}/data"\nlisten = "127.0.0.1:1"\n'
            'scrub_rate = "0"\n[watch]\nonce = true\n'
        )
        monkeypatch.setenv("DOS_CONFIG", str(file))
        process = subprocess.Popen(
            [sys.executable, "-m", "dos_cli", "serve", "--json"],
            env={**os.environ, "DOS_SERVE_LISTEN": address},  # a variable comes before the file
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert (started["data"], started["address"]) == (f"{tmp_path}/data", address)
            assert dos("store", "init").returncode == 0
            watched = dos("store", "watch", "--json")  # ends, because of once = true
            assert watched.returncode == 0, watched.stderr
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\xff", "is not UTF-8"), (None, "cannot be read: Is a directory"), (b"store = 1", "Expected `str`")],
)
def test_a_file_that_cannot_be_read_is_named_and_hinders_no_command_with_a_url(
    content: bytes | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dos.toml"
    file.mkdir() if content is None else file.write_bytes(content)
    monkeypatch.setenv("DOS_CONFIG", str(file))
    refused = dos("ls")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"dos: {file}")
    assert expected in refused.stderr
    assert dos("ls", "dos://127.0.0.1:1").returncode == 3


def test_an_option_that_a_service_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "dos.toml").write_text("[serve]\nlisen = '127.0.0.1:0'\n")
    monkeypatch.setenv("DOS_CONFIG", str(file))
    refused = dos("serve", "--data", tmp_path / "data")
    assert refused.returncode == 2
    assert "[serve] has 'lisen', which is no option of `dos serve`" in refused.stderr


def test_the_servers_of_dos_chaos_have_no_options_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "dos.toml").write_text("[serve]\nlisen = '127.0.0.1:0'\n")
    monkeypatch.setenv("DOS_CONFIG", str(file))
    monkeypatch.setenv("DOS_SERVE_TOKEN_FILE", str(file))
    with ServerProcess(tmp_path / "data") as server:
        assert dos("ping", server.url, "--count", "1").returncode == 0
