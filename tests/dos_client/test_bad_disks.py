"""A member whose disk takes its time, or fails: the quorum does not wait for it, and it does not count."""

from pathlib import Path

import pytest
import trio

from dos_client import init_store
from tests.dos_client.support import claimed, content_of, has, until, url_of
from tests.support.servers import ServerProcess
from tests.support.strace import SYNCS, Injected

pytestmark = [pytest.mark.trio, pytest.mark.process]

SYNC_DELAY_S = 40.0
LOG_SLOTS = ("0", "1", "2", "3")


async def test_a_member_whose_fsync_hangs_delays_no_acknowledgement(
    three_servers: list[ServerProcess],
    tmp_path: Path,
) -> None:
    # EVIDENCE-OF: P-1, P-10
    await init_store(url_of(three_servers))
    slow = three_servers[0]
    strace_options = (f"trace={SYNCS}", f"inject={SYNCS}:delay_enter={int(SYNC_DELAY_S * 1e6)}")
    async with claimed(three_servers) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        await has(slow, "d", "x", b"before")
        content = b"before"
        with Injected(slow.pid, tmp_path / "strace.log", *strace_options) as injected:
            begun = trio.current_time()
            for number in range(20):
                record = b"%08d" % number
                await writer.wait_synced(writer.append(record))
                assert not claim.waiting
                content += record
            assert await content_of(slow, "d", "x") == b"before", "it reads, and shows what is durable"
            assert trio.current_time() - begun < SYNC_DELAY_S, "none of them waited for a sync of it"
        assert any(call.file in LOG_SLOTS for call in injected.calls())
        for server in three_servers:
            await has(server, "d", "x", content)


@pytest.fixture(params=["1", "0"], ids=["its group log", "an object"])
def log_mib(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The size of the group log of the servers that the test starts."""
    monkeypatch.setenv("DOS_GROUP_LOG", request.param)
    return str(request.param)


async def test_a_member_whose_fsync_fails_does_not_count_and_returns_after_a_restart(
    log_mib: str,
    three_servers: list[ServerProcess],
    tmp_path: Path,
) -> None:
    """A server whose group log fails ends; without a log, the object is poisoned."""
    # EVIDENCE-OF: P-1, P-5, P-10
    await init_store(url_of(three_servers))
    failing = three_servers[0]
    strace_options = (f"trace={SYNCS}", f"inject={SYNCS}:error=EIO")
    shown = "broken" if log_mib == "0" else "unavailable"
    async with claimed(three_servers) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        await has(failing, "d", "x", b"before")
        content = b"before"
        with Injected(failing.pid, tmp_path / "strace.log", *strace_options):
            for number in range(20):
                record = b"%08d" % number
                await writer.wait_synced(writer.append(record))
                content += record
            await until(lambda: any(one.state == shown for one in store.members()), f"it is shown as {shown}")
        assert not claim.waiting
        if log_mib == "0":
            assert await content_of(failing, "d", "x") == b"before"
        else:
            assert failing.process.wait(timeout=30) == 1
        for server in three_servers[1:]:
            await has(server, "d", "x", content)
        await trio.to_thread.run_sync(failing.restart)
        await has(failing, "d", "x", content)
        await until(lambda: all(one.state == "in sync" for one in store.members()), "it is in sync again")
