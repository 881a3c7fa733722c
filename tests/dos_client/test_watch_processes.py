"""`dos store watch` as users run it: processes of servers and watchers, ended by signals."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import trio

from dos_client import init_store, open_store
from dos_client.membership.record_log import read_history
from dos_client.membership.replacing import add_spare
from tests.dos_client.support import claimed, content_of, until, url_of, write_idle
from tests.support.servers import ServerProcess

pytestmark = [pytest.mark.trio, pytest.mark.process]

CONTENT = bytes(range(256)) * 40_000


class WatcherProcess:
    """One `dos store watch`. `lines`: what it printed on both streams."""

    def __init__(self, url: str, *options: str) -> None:
        command = [sys.executable, "-m", "dos_cli", "store", "watch", url, "--interval", "0.3s"]
        command += ["--replace-after", "1s", "--stand-by", "2s", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.lines.append(line.rstrip())

    def end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=20)
        for reader in self._readers:
            reader.join(timeout=20)
        return code

    def done(self, action: str) -> list[dict[str, Any]]:
        """Return the actions of a kind that it performed (with --json)."""
        seen = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [one for one in seen if one["done"] and one["action"] == action]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    started: list[ServerProcess] = []
    try:
        started += [ServerProcess(tmp_path / f"server-{number}") for number in range(5)]
        yield started
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def watchers() -> Iterator[list[WatcherProcess]]:
    started: list[WatcherProcess] = []
    yield started
    for one in started:
        one.end(signal.SIGKILL)


async def test_a_store_outlives_two_of_its_servers_and_a_watcher(
    servers: list[ServerProcess], watchers: list[WatcherProcess]
) -> None:
    # EVIDENCE-OF: P-4, P-5, P-10
    url = url_of(servers[:3])
    await init_store(url)
    for spare in servers[3:]:
        await add_spare(url, new=spare.location)
    await write_idle(url, "idle", 3, CONTENT)
    async with claimed(servers[:3], "live") as (store, claim), trio.open_nursery() as nursery:
        writer, written = claim.open_object("x"), bytearray()

        async def write() -> None:
            while True:
                record = b"%015d," % len(written)
                await writer.wait_synced(writer.append(record))
                written.extend(record)
                await trio.sleep(0.02)

        nursery.start_soon(write)
        watchers.append(WatcherProcess(url))
        await until(lambda: any("members are present" in one for one in watchers[0].lines), "it looks")
        servers[2].kill()
        await until(lambda: any(one.startswith("filling") for one in watchers[0].lines), "it fills")
        assert watchers[0].end(signal.SIGKILL) == -signal.SIGKILL
        await until(lambda: store.record.generation == 4, "the spare is joining")
        watchers += [WatcherProcess(url, "--json") for _ in range(2)]
        await until(lambda: store.record.generation == 5, "another watcher completes it")
        assert [one.state for one in store.record.members] == ["in"] * 3
        servers[1].kill()
        await until(lambda: store.record.generation == 7, "the second one is replaced")
        size = writer.synced
        await until(lambda: writer.synced > size, "the writer goes on")
        nursery.cancel_scope.cancel()
    await until(lambda: any(one.done("replace") for one in watchers[1:]), "one of them reports it")
    assert [one.end(signal.SIGTERM) for one in watchers[1:]] == [0, 0]
    assert len(watchers[1].done("complete") + watchers[2].done("complete")) == 1
    assert len(watchers[1].done("replace") + watchers[2].done("replace")) == 1
    left = [servers[0], servers[3], servers[4]]
    async with open_store(url_of(left)) as store:
        assert {one.address for one in store.record.members} == {one.location for one in left}
        history = await read_history(store)
    assert (history[2].what, history[2].outcome) == ("replace", ""), "the watcher that died"
    assert [one.what for one in history[3:] if one.outcome == "done"] == ["replace", "replace"]
    for server in left:
        assert await content_of(server, "idle", "o0") == CONTENT
    for server in left[1:]:
        assert (await content_of(server, "live", "x")).startswith(bytes(written))
