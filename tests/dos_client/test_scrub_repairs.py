"""Damage to an old object that is not read: a server's scrub finds it, and the store repairs it.

Real servers as processes, a bit flipped on a disk, no person, no reader.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import init_store, open_store
from dos_client.repair.verifying import verify_store
from dos_client.sessions.connection import open_connection
from dos_server.core.files.findings import Severity
from dos_server.offline.fsck import Check
from tests.dos_client.support import claimed, damage, until, url_of
from tests.dos_client.test_cli import dos
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.process

CONTENT = b"".join(b"%015d," % number for number in range(60_000))
FAST = ("--scrub-rate", "1GB/s", "--scrub-every", "0.1s")


@pytest.fixture
def three_scrubbed(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Three servers whose scrub goes round all the time."""
    with contextlib.ExitStack() as stack:
        folders = [tmp_path / f"server-{number}" for number in range(3)]
        yield [stack.enter_context(ServerProcess(folder, options=FAST)) for folder in folders]


async def old_object(servers: list[ServerProcess]) -> None:
    """A store with an object whose writer is gone, the same on all three."""
    await init_store(url_of(servers))
    async with claimed(servers, "old") as (_, claim):
        writer = claim.open_object("o")
        for start in range(0, len(CONTENT), 200_000):
            await writer.wait_synced(writer.append(CONTENT[start : start + 200_000]))
        files = [server.data / "d" / "old" / "o" for server in servers]
        await until(
            lambda: all(file.exists() and file.stat().st_size > len(CONTENT) for file in files),
            "all three have all of it",
        )


def repaired(server: ServerProcess) -> bool:
    """Whether the server replaced its bad copy by a new one; read from its disk, without a request."""
    folder = server.data / "d" / "old"
    return (folder / ".broken.o.0").exists() and (folder / "o").exists()


@pytest.mark.trio
async def test_rot_that_nobody_reads_is_found_and_repaired_by_the_living_store(
    three_scrubbed: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVIDENCE-OF: P-5, P-10
    monkeypatch.setattr("dos_client.repair.repairing.damage_watch_s", 0.2)
    bad = three_scrubbed[1]
    await old_object(three_scrubbed)
    async with claimed(three_scrubbed, "elsewhere") as (store, _):
        await damage(bad, "old", "o", notice=False, at=500_000)
        await until(lambda: repaired(bad), "the copy is replaced")
        await until(lambda: not store.damage.reports(), "the store has nothing left to repair")
        assert store.damage.found == 1
        verified = await verify_store(store, read=True)
        assert (verified.findings, verified.unavailable) == ([], {})
    log = bad.log_path.read_text()
    assert log.count("scrub: old/o is damaged from") == 1
    for server in three_scrubbed:
        assert server.stop() == 0
        report = Check(server.data).run()
        assert {one.verdict for one in report.findings} <= {Severity.NOTE}, report.findings


@pytest.mark.trio
async def test_without_a_living_writer_it_is_quarantined_and_the_command_repairs_it(
    three_scrubbed: list[ServerProcess],
) -> None:
    # EVIDENCE-OF: P-5
    bad = three_scrubbed[2]
    await old_object(three_scrubbed)
    await damage(bad, "old", "o", notice=False, at=300)

    async def noticed() -> bool:
        async with open_connection(bad.location) as connection:
            return any(entry.corrupt for entry in await connection.list_all())

    with trio.fail_after(60):
        while not await noticed():  # noqa: ASYNC110 - the server has no event for us
            await trio.sleep(0.05)
    bad.restart()
    assert await noticed(), "a restart does not forget it"
    done = await trio.to_thread.run_sync(dos, "store", "repair", url_of(three_scrubbed))
    assert done.code == 0, done
    assert b"1 copies repaired, 0 left to repair" in done.stdout
    assert not await noticed()
    async with open_store(url_of(three_scrubbed)) as store:
        assert (await verify_store(store, read=True)).findings == []


def test_a_scrub_can_be_begun_now_and_is_waited_for(tmp_path: Path) -> None:
    """The servers would begin a round of their own in a day."""
    slow = ("--scrub-rate", "1GB/s", "--scrub-every", "24h")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(ServerProcess(tmp_path / f"server-{number}", options=slow))
            for number in range(3)
        ]
        url = url_of(servers)
        trio.run(old_object, servers)
        clean = dos("store", "scrub", url)
        assert (clean.code, clean.stdout.count(b"verified, ")) == (0, 3), clean.stderr
        trio.run(lambda: damage(servers[1], "old", "o", notice=False, at=500_000))
        found = dos("store", "scrub", url, "--rate", "500MB/s", "--json")
        rows = json.loads(found.stdout)
        assert (found.code, [row["damaged"] for row in rows.values()]) == (1, [0, 1, 0])
        assert all(row["done"] for row in rows.values())
        assert dos("store", "status", url).code == 1, "the server knows it, so everybody does"
        assert dos("store", "repair", url).code == 0
        servers[2].kill()
        left = dos("store", "scrub", url, "--no-wait")
        assert (left.code, left.stdout.count(b"begun, ")) == (1, 2)


def test_a_scrub_that_is_off_is_refused_with_the_option(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", options=("--scrub-rate", "0")) as server:
        trio.run(init_store, server.url)
        refused = dos("store", "scrub", server.url)
        assert refused.code == 1
        assert b"the scrub of this server is off (--scrub-rate 0)" in refused.stdout
