"""400 connections that send garbage, of every kind and without pause: the server stays up, within 100 MB, and
serves a good client meanwhile.
"""

import re
import threading
import time
from pathlib import Path

import pytest
import trio

from dos_protocol import messages as m
from tests.support.garbage import KINDS, garbage
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

pytestmark = pytest.mark.process

CONNECTIONS = 400
GARBAGE_SECONDS = 6.0
RESIDENT_MB_MAX = 100
ROUNDS_MIN = 3


def peak_megabytes(pid: int) -> float:
    """The most memory that was ever resident, as the kernel counted it."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert match is not None
    return int(match[1]) / 1024


class GoodClient(threading.Thread):
    """Appends one after the other, waits for each to be synced, and reads it back from another connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.content = b""
        self.stopping = threading.Event()
        self.enough = threading.Event()
        self.rounds = 0
        self.slowest_seconds = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Wire(self.address) as writer:
                assert isinstance(writer.claim("good"), m.DirectoryOpened)
                while not self.stopping.is_set():
                    self._round(writer)
        except BaseException as error:
            self.failure = error
            self.enough.set()

    def _round(self, writer: Wire) -> None:
        began = time.monotonic()
        payload = b"%d," % self.rounds * (1 if self.rounds % 4 else 20_000)
        writer.append("o", self.content, payload)
        start, self.content = len(self.content), self.content + payload
        writer.wait_synced("o", len(self.content))
        with Wire(self.address) as reader:
            assert isinstance(reader.ask(m.ChangeDirectory("good")), m.DirectoryOpened)
            found = b""
            while len(found) < len(payload):  # a server under pressure may give less at a time
                data = reader.ask(m.Get("o", start + len(found), len(payload) - len(found)))
                assert isinstance(data, m.Data), data
                assert data.payload, (start, found)
                found += data.payload
            assert found == payload
        self.rounds += 1
        if self.rounds == ROUNDS_MIN:
            self.enough.set()
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)


@pytest.mark.parametrize("seed", [1])
def test_400_garbage_connections_harm_neither_the_server_nor_its_good_client(
    tmp_path: Path, seed: int
) -> None:
    # EVIDENCE-OF: P-8, P-9
    with ServerProcess(tmp_path / "server") as server:
        with Wire(server.address) as wire:
            wire.claim("good", 1)
            wire.append("large", b"", bytes(1 << 20))
            wire.wait_synced("large", 1 << 20)
        good = GoodClient(server.address)
        made, rounds_meanwhile = trio.run(storm, server, good, seed)
        good.stopping.set()
        good.join(60)
        assert good.failure is None, good.failure
        assert not good.is_alive()
        assert rounds_meanwhile >= ROUNDS_MIN, "appends acknowledged and read back while the garbage went on"
        assert set(made) == {kind.__name__ for kind in KINDS}
        assert made.total() > 2 * CONNECTIONS
        peak = peak_megabytes(server.pid)
        print(f"{made.total()} connections, {rounds_meanwhile} rounds, slowest {good.slowest_seconds:.2f} s")
        print(f"at most {peak:.0f} MB resident")
        assert server.running
        assert "Traceback" not in server.log_path.read_text(encoding="utf-8", errors="strict")
        with Wire(server.address) as reader:
            opened = reader.ask(m.ChangeDirectory("good"))
            assert {one.name: one.synced for one in opened.entries}["o"] == len(good.content)
        assert server.stop() == 0
    assert peak < RESIDENT_MB_MAX


async def storm(server: ServerProcess, good: GoodClient, seed: int) -> tuple[object, int]:
    until, settled = trio.Event(), trio.Event()
    result = []

    async def throw() -> None:
        result.append(
            await garbage(server.address, connections=CONNECTIONS, seed=seed, until=until, settled=settled)
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(throw)
        with trio.fail_after(60):
            await settled.wait()
        good.start()
        began = trio.current_time()
        await trio.to_thread.run_sync(good.enough.wait, 60)
        await trio.sleep_until(began + GARBAGE_SECONDS)
        rounds = good.rounds
        until.set()
    return result[0], rounds
