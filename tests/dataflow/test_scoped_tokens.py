"""A region on a store whose servers have tokens with limited rights: real servers and worker processes."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path

import pytest
import trio

import dos
from dos_client import Store, open_store
from dos_client.errors import TokenRefusedError
from dos_protocol.errors import ForbiddenError
from tests.support.dos_command import dos as command
from tests.support.polling import until
from tests.support.servers import ServerProcess, url_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(240), pytest.mark.usefixtures("forks")]
WAIT_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """A store of three, whose servers share the file of tokens; `tmp_path` has each token in NAME.token."""
    tokens = tmp_path / "tokens.json"
    for name, *grants in (
        ("operator", "*:all"),
        ("shop", "shop:read,append,delete"),
        ("reports", "reports:all", "shop:read"),
        ("prices", "prices:all"),
    ):
        listed = [one for grant in grants for one in ("--grant", grant)]
        command("token", "add", tokens, name, *listed, "--out", tmp_path / f"{name}.token")
    options = ("--tokens", str(tokens))
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(tmp_path / f"server-{number}", options=options))
            for number in range(3)
        ]
        url = url_of(servers)
        refused = command("store", "init", url, "--token-file", tmp_path / "shop.token")
        assert refused.returncode == 3
        assert "token 'shop' may not change the store record" in refused.stderr
        made = command("store", "init", url, "--token-file", tmp_path / "operator.token")
        assert made.returncode == 0, made.stderr
        yield url


def counting() -> dos.Graph:
    graph = dos.Graph("shop")
    words = graph.source("words", dos.InputSource("words", "word string"))
    words.key_by("by_word", "word").count("counted").sink("out", dos.LogSink(publish="step"))
    return graph


async def counts(store: Store) -> dict[str, int]:
    found = {}
    async with aclosing(dos.read_output(store, "shop", "out")) as steps:
        async for step in steps:
            for row in step.table.to_pylist() if step.table is not None else ():
                found[row["word"]] = row["count"]
    return found


async def send(url: str, token: bytes, *words: str) -> None:
    async with (
        open_store(url, token=token) as store,
        dos.open_producer(store, "shop", "words", "p", "word string") as producer,
    ):
        await producer.wait_recorded(await producer.send([{"word": word} for word in words]))


async def counted(url: str, token: bytes) -> dict[str, int]:
    async with open_store(url, token=token) as store:
        return await counts(store)


async def directories(url: str, token: bytes) -> list[str]:
    async with open_store(url, token=token) as store:
        return sorted(await store.list_directories())


def test_a_region_runs_and_recovers_with_a_token_for_its_own_directories(store: str, tmp_path: Path) -> None:
    def token(name: str) -> bytes:
        return (tmp_path / f"{name}.token").read_bytes().strip()

    handle = dos.run_local(
        counting(), name="shop", workers=2, store=store, token=token("shop"), checkpoint_interval=0.3
    )
    try:
        trio.run(send, store, token("shop"), "a", "b", "a")
        until(lambda: handle.status.last_checkpoint >= 1, "a checkpoint", WAIT_S)
        os.kill(handle.status.workers[0].pid, signal.SIGKILL)
        trio.run(send, store, token("shop"), "b")
        expected = {"a": 2, "b": 2}
        read = partial(trio.run, counted, store)
        until(lambda: read(token("shop")) == expected, "all is counted", WAIT_S)
        assert read(token("reports")) == expected, "it may read the region"
        with pytest.raises(ForbiddenError, match="token 'prices' may not open directory 'shop"):
            read(token("prices"))
        with pytest.raises(ForbiddenError, match="token 'reports' may not claim directory"):
            trio.run(send, store, token("reports"), "c")
        with pytest.raises(TokenRefusedError):
            read(b"made up")
    finally:
        handle.stop()
    assert handle.exception() is None
    check_lists(store, tmp_path / "operator.token")
    made = trio.run(directories, store, token("operator"))
    assert all(name.split(".")[0] in ("shop", "store") for name in made), made


def check_lists(url: str, token: Path) -> None:
    """Everything that exists can be listed."""
    options = (url, "--token-file", token)
    (region,) = json.loads(command("region", "ls", *options, "--json").stdout)
    assert region | {"timeMs": 0, "checkpoint": 0, "step": 0, "line": 0} == {
        **dict.fromkeys(("timeMs", "checkpoint", "step", "line"), 0),
        "region": "shop",
        "final": False,
        "workers": 2,
        "savepoints": [],
        "outputs": ["out"],
        "problem": "",
    }
    assert re.search(r"shop +\d+ +\d+\.\d s ago +\d+ +2 +- +out", command("region", "ls", *options).stdout)
    (found,) = json.loads(command("input", "ls", *options, "--json").stdout)
    assert found == {
        "input": "shop/words",
        "application": "shop",
        "handle": "words",
        "producers": ["p"],
        "regions": ["shop"],
        "queries": [],
        "problem": "",
    }
    assert re.search(r"shop/words +p +shop", command("input", "ls", *options).stdout)


def test_verify_says_that_a_token_shows_some_directories_only(store: str, tmp_path: Path) -> None:
    for name, complete in (("operator", True), ("shop", False)):
        token = ("--token-file", tmp_path / f"{name}.token")
        assert json.loads(command("store", "verify", store, "--json", *token).stdout)["complete"] is complete
        warned = (
            "only the directories that this token shows" in command("store", "verify", store, *token).stderr
        )
        assert warned is not complete


def test_a_region_without_the_right_to_append_says_so(store: str, tmp_path: Path) -> None:
    token = (tmp_path / "reports.token").read_bytes().strip()
    handle = dos.run_local(counting(), name="shop", workers=1, store=store, token=token)
    try:
        assert handle.wait(WAIT_S)
        assert "token 'reports' may not claim directory 'shop.coord'" in str(handle.exception())
    finally:
        handle.stop()


@pytest.mark.parametrize("from_file", [False, True], ids=["bytes", "file"])
def test_a_region_whose_token_is_revoked_names_it_and_continues_when_its_file_has_another(
    store: str, tmp_path: Path, from_file: bool
) -> None:
    tokens, file = tmp_path / "tokens.json", tmp_path / "shop.token"
    token = dos.FileToken(file) if from_file else file.read_bytes().strip()
    handle = dos.run_local(
        counting(), name="shop", workers=2, store=store, token=token, checkpoint_interval=0.3
    )
    try:
        trio.run(send, store, token, "a", "b")
        until(lambda: handle.status.last_checkpoint >= 1, "a checkpoint", WAIT_S)
        assert command("token", "revoke", tokens, "shop").returncode == 0
        text = "the token is missing, wrong, expired or revoked"
        until(lambda: text in handle.status.reason, "the reason", WAIT_S)
        assert "start the missing members" not in handle.status.reason
        if from_file:
            renewed = command("token", "add", tokens, "shop2", "--grant", "shop:read,append,delete")
            file.write_text(renewed.stdout)
            until(lambda: handle.status.state.value == "RUNNING", "it continues", WAIT_S)
            trio.run(send, store, token, "c")
            read = partial(trio.run, counted, store)
            until(lambda: read(token) == {"a": 1, "b": 1, "c": 1}, "all is counted", WAIT_S)
        else:
            assert handle.wait(WAIT_S)
            assert text in str(handle.exception())
    finally:
        handle.stop()
