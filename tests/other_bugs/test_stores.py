"""Reports about replicated logs: members that lose their disks in turn, files of zeros, names that move,
clocks that jump, signals that a shell keeps."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import init_store, open_store, replace_member
from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_server import embedded
from tests.dos_client.support import (
    Threads,
    caught_up,
    claimed,
    has,
    new_writer,
    on,
    record_of,
    thread_servers,
    until,
    url_of,
    wipe,
)
from tests.support.needs import lacking
from tests.support.servers import ServerProcess
from tests.support.wire import Wire


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Threads]:
    with thread_servers(tmp_path, 3) as servers:
        yield servers


# EVIDENCE-OF: P-2, P-5
@pytest.mark.trio
@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1)])
async def test_members_that_are_replaced_in_turn_at_their_addresses_lose_nothing_of_an_open_writer(
    three: Threads, order: tuple[int, ...]
) -> None:
    url, content = url_of(three), b""
    await init_store(url)
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        for number, member in enumerate(order):
            for members in (3, 2):
                content += record_of(number)
                await writer.wait_synced(writer.append(record_of(number)))
                await caught_up(store)
                if members == 3:
                    await wipe(three[member])
            await on(three[member])
            record = await replace_member(url, old=three[member].location, new=three[member].location)
            await until(lambda record=record: store.record == record, "the writer is at the new generation")
        for server in three:
            await has(server, "d", "x", content)
    async with claimed(three, epoch=2):
        for server in three:
            await has(server, "d", "x", content)


class Names:
    """A name service: trio's hook for resolvers of one's own. `at`: name -> address, "" for none."""

    def __init__(self, at: dict[str, str]) -> None:
        self.at = at

    async def getaddrinfo(self, host: bytes, port: object, *rest: int) -> list[object]:
        name = host.decode()
        if name in self.at and not self.at[name]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        address = self.at.get(name, name)
        found: list[object] = [*socket.getaddrinfo(address, int(str(port)), 0, socket.SOCK_STREAM)]
        return found

    async def getnameinfo(self, sockaddr: tuple[str, int], flags: int) -> tuple[str, str]:
        raise NotImplementedError


@pytest.mark.trio
async def test_a_member_whose_name_moves_to_another_address_is_found_there(three: Threads) -> None:
    names = Names({f"dos-{number}.test": "127.0.0.1" for number in range(3)})
    trio.socket.set_custom_hostname_resolver(names)  # type: ignore[arg-type]
    url = "dos://" + ",".join(f"dos-{number}.test:{one.address[1]}" for number, one in enumerate(three))
    await init_store(url)
    async with open_store(url) as store, await store.claim("d", 1, new_writer()) as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before "))
        await caught_up(store)
        names.at["dos-1.test"] = ""
        await trio.to_thread.run_sync(three[1].kill)
        await writer.wait_synced(writer.append(b"without "))
        await until(lambda: not store.members()[1].connected, "the member is missed")
        moved = embedded.start(three[1].data, "127.0.0.2", three[1].address[1])
        try:
            names.at["dos-1.test"] = "127.0.0.2"
            await writer.wait_synced(writer.append(b"after"))
            await until(
                lambda: all(one.state == "in sync" and not one.lag_bytes for one in store.members()),
                "the member has all at its new address",
            )
        finally:
            await trio.to_thread.run_sync(moved.stop)
    await on(three[1])
    await has(three[1], "d", "x", b"before without after")


@pytest.mark.trio
async def test_a_clock_that_jumps_an_hour_costs_no_claim_and_no_connection(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the servers and of the client, which are in this process."""
    real, real_ns, hours = time.time, time.time_ns, 0
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 3600 * 10**9 * hours)
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer, content = claim.open_object("x"), b""
        for number, hours in enumerate((0, 1, 0, -1, 0)):  # noqa: B007 - the lambdas above read it
            content += record_of(number)
            await writer.wait_synced(writer.append(record_of(number)))
            await caught_up(store)
        for server in three:
            await has(server, "d", "x", content)
        assert not any(store.counts.reconnects.values())
    async with claimed(three, epoch=2) as (store, _):
        assert await store.read("d", "x", 0, len(content)) == content


def damages(content: bytes) -> dict[str, bytes]:
    """What a file system may leave of a file whose data never reached the disk."""
    kept = max(len(content) - 4096, 0)
    zeros_at_end = content[:kept] + bytes(len(content) - kept)
    found = {"zeros": bytes(len(content)), "empty": b"", "zeros at its end": zeros_at_end}
    return {what: data for what, data in found.items() if data != content}


# EVIDENCE-OF: P-2
def test_whatever_file_of_a_server_is_zeros_no_byte_is_another_and_none_is_missing_in_silence(
    tmp_path: Path,
) -> None:
    texts = {(directory, name): os.urandom(6_000) for directory in ("one", "two") for name in ("a", "b")}
    with ServerProcess(tmp_path / "server") as server:
        for (directory, name), text in texts.items():
            with Wire(server.address) as wire:
                wire.claim(directory)
                wire.append(name, b"", text)
                wire.wait_synced(name, len(text))
        server.kill()
    problems = []
    for path in [path for path in sorted((tmp_path / "server").rglob("*")) if path.is_file()]:
        for what, data in damages(path.read_bytes()).items():
            place = tmp_path / "damaged"
            shutil.copytree(tmp_path / "server", place)
            (place / path.relative_to(tmp_path / "server")).write_bytes(data)
            problems += [f"{path.name} is {what}: {one}" for one in served_wrong(place, texts, path.name)]
            shutil.rmtree(place)
    assert not problems, "\n".join(problems)


def served_wrong(place: Path, texts: dict[tuple[str, str], bytes], name: str) -> Iterator[str]:
    """Start a server on a directory whose file `name` is damaged; yield what it serves wrong."""
    try:
        server = embedded.start(place, log_bytes=1 << 20)
    except CorruptDataError as error:
        if name not in str(error) and "the group log" not in str(error):
            yield f"refused without the file: {error}"
        return
    try:
        for (directory, name), text in texts.items():
            with Wire(server.address) as wire:
                opened = wire.ask(m.ChangeDirectory(directory))
                found = wire.ask(m.Get(name, 0, 1 << 20)) if isinstance(opened, m.DirectoryOpened) else opened
                if isinstance(found, m.Data) and bytes(found.payload) != text:
                    yield f"{directory}/{name} has {len(found.payload)} bytes"
                elif isinstance(found, m.Error) and found.code != ErrorCode.CORRUPT:
                    yield f"{directory}/{name}: {found}"
    finally:
        server.stop()


NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.process
@pytest.mark.parametrize("shell", [(), ("sh", "-c", 'exec "$@"', "sh")])
def test_a_server_that_is_process_1_of_a_container_ends_cleanly_by_sigterm(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        lacking("needs root and unshare, to start a process as the first of its namespace")
    with ServerProcess(tmp_path / "server", under=(*NAMESPACE, *shell)) as server:
        (first,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert server.process.wait(20) == 0
