"""The cluster of a run: three servers as processes, a proxy before each, and writers as processes.

It starts, stops and counts. The nemesis decides what happens when. Every process is ended by its own id.
"""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import trio

from dos_chaos.core.checker import WrittenRecord
from dos_chaos.workload import count_acknowledged, read_log
from dos_client import init_store
from tests.chaos.writer import FENCED
from tests.support.proxy import Proxy
from tests.support.servers import ServerProcess

SERVERS = 3


class Member:
    """A server and the proxy before it. `turn`: held by the task that kills, starts or wipes it."""

    def __init__(self, name: str, server: ServerProcess) -> None:
        self.name = name
        self.server = server
        self.proxy = Proxy(server.address)
        self.turn = trio.Lock()
        self.paused = False

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self.server.kill)
        self.paused = False

    async def restart(self) -> None:
        await trio.to_thread.run_sync(self.server.restart)

    async def wipe(self) -> None:
        """Lose its disk; another, empty server starts at its address."""
        await self.kill()
        await trio.to_thread.run_sync(shutil.rmtree, self.server.data)
        await self.restart()

    def pause(self) -> None:
        if self.server.running:
            self.server.pause()
            self.paused = True

    def resume(self) -> None:
        if self.server.running:
            self.server.resume()
        self.paused = False


@dataclass(eq=False, slots=True)
class Writer:
    """A writer process. `epoch`: the last it opened under, 0 before that. `ended`: its exit code."""

    name: str
    directory: str
    process: trio.Process
    log: Path
    epoch: int = 0
    paused: bool = False
    ended: int | None = None
    sees_store: trio.Event = field(default_factory=trio.Event)
    claims: trio.Event = field(default_factory=trio.Event)
    opened: trio.Event = field(default_factory=trio.Event)
    exited: trio.Event = field(default_factory=trio.Event)

    @property
    def running(self) -> bool:
        return self.ended is None and self.process.returncode is None

    @property
    def acknowledged(self) -> int:
        return count_acknowledged(self.log)

    def send(self, number: int) -> None:
        if self.running:
            self.process.send_signal(number)

    def pause(self) -> None:
        self.send(SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.send(SIGCONT)
        self.paused = False


class Cluster:
    """The cluster of one run. `errors`: unplanned ends of writers, as text."""

    def __init__(self, folder: Path, seed: int, window: int, nursery: trio.Nursery) -> None:
        self.folder = folder
        self.members: list[Member] = []
        self.writers: dict[str, list[Writer]] = {}
        self.take_overs = 0
        self.fenced = 0
        self.superseded = 0
        self.errors: list[str] = []
        self._seed = seed
        self._window = window
        self._nursery = nursery
        self._numbers = count(1)

    @property
    def url(self) -> str:
        """The store through the proxies: the store record names them too."""
        return "dos://" + ",".join(member.proxy.location for member in self.members)

    async def start(self, directories: list[str]) -> None:
        (self.folder / "logs").mkdir(parents=True)
        for index in range(SERVERS):
            name = f"s{index + 1}"
            server = await trio.to_thread.run_sync(ServerProcess, self.folder / name)
            member = Member(name, server)
            self.members.append(member)
            await self._nursery.start(member.proxy.run)
        await init_store(self.url)
        self.writers = {directory: [] for directory in directories}

    async def add_writer(self, directory: str, delay_s: float = 0.0) -> Writer:
        """One more contender for the directory; `delay_s`: between seeing the store and its first step."""
        name = f"{directory}.{next(self._numbers)}"
        log = self.folder / "logs" / name
        command = [sys.executable, "-m", "tests.chaos.writer", self.url, directory, str(log), name]
        with log.with_name(f"{name}.stderr").open("wb") as errors:
            process = await trio.lowlevel.open_process(
                [*command, str(self._seed), str(self._window), str(delay_s)],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        writer = Writer(name, directory, process, log)
        self.writers[directory].append(writer)
        self._nursery.start_soon(self._listen, writer)
        return writer

    async def _listen(self, writer: Writer) -> None:
        """Read the output of a writer until it ends."""
        assert writer.process.stdout is not None
        rest = b""
        try:
            while data := await writer.process.stdout.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._heard(writer, line.decode().split())
            writer.ended = await writer.process.wait()
            if writer.ended not in (FENCED, -SIGKILL):
                stderr = writer.log.with_name(f"{writer.name}.stderr").read_text()
                self.errors.append(f"writer {writer.name} ended with {writer.ended}: {stderr[-2_000:]}")
            writer.exited.set()
        finally:
            if writer.process.returncode is None:
                writer.process.kill()

    def _heard(self, writer: Writer, words: list[str]) -> None:
        match words:
            case ["store"]:
                writer.sees_store.set()
            case ["claims", _]:
                writer.claims.set()
            case ["open", epoch, _]:
                writer.epoch = int(epoch)
                self.take_overs += 1
                writer.opened.set()
            case ["fenced", *_]:
                self.fenced += 1
            case ["superseded", *_]:
                self.superseded += 1

    def living(self, directory: str) -> list[Writer]:
        return [one for one in self.writers[directory] if one.running]

    def acknowledged_in(self, directory: str) -> int:
        return sum(writer.acknowledged for writer in self.writers[directory])

    @property
    def acknowledged(self) -> int:
        return sum(map(self.acknowledged_in, self.writers))

    def logged(self, directory: str) -> list[WrittenRecord]:
        """Return everything acknowledged in a directory, by any writer."""
        return [
            entry
            for writer in self.writers[directory]
            if writer.log.exists()
            for entry in read_log(writer.log)
        ]

    async def heal(self) -> None:
        """Network whole, every process awake, every server up."""
        for member in self.members:
            member.proxy.heal()
            async with member.turn:
                member.resume()
                if not member.server.running:
                    await member.restart()
        for writers in self.writers.values():
            for writer in writers:
                if writer.paused:
                    writer.resume()

    async def end_writers(self) -> None:
        """SIGKILL all, and wait until they have ended."""
        for writers in self.writers.values():
            for writer in writers:
                writer.send(SIGKILL)
            for writer in writers:
                await writer.exited.wait()

    async def end_servers(self) -> None:
        for member in self.members:
            async with member.turn:
                await member.kill()


@asynccontextmanager
async def running(folder: Path, seed: int, window: int, directories: list[str]) -> AsyncIterator[Cluster]:
    """Yield a cluster; all its processes are killed at the end."""
    async with trio.open_nursery() as nursery:
        cluster = Cluster(folder, seed, window, nursery)
        try:
            await cluster.start(directories)
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                for member in cluster.members:
                    await trio.to_thread.run_sync(member.server.kill)
                for writers in cluster.writers.values():
                    for writer in writers:
                        writer.send(SIGKILL)
                        await writer.process.wait()
        nursery.cancel_scope.cancel()
