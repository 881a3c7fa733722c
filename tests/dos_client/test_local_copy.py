"""A member that is far behind is filled from the writer's own disk, as far as that proves right; else from
another member."""

import logging
import random
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from dos_client import Claim, ObjectWriter, Store, init_store
from dos_client.core.quorum import Quorums
from dos_client.core.replica import ReplicaState
from dos_client.core.window import SendWindow
from dos_client.limits import milestone_bytes, window_bytes_max
from dos_client.writing.object_writer import WriteTarget
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import PoisonedError
from journal.scratch import ScratchCopy
from tests.dos_client.records import record
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    claimed,
    claimed_through_proxies,
    content_of,
    has,
    off,
    on,
    until,
    url_of,
)
from tests.support.proxy import Way
from tests.support.servers import ServerProcess

BLOCK = bytes(range(256)) * 256
TOTAL = 2 * window_bytes_max + 5 * len(BLOCK) + 1_000


def content_to(size: int) -> bytes:
    """Bytes that differ from block to block."""
    return b"".join(
        number.to_bytes(4) + BLOCK[: min(len(BLOCK), size - start) - 4]
        for number, start in enumerate(range(0, size, len(BLOCK)))
    )


CONTENT = content_to(TOTAL)


async def append_all(writer: ObjectWriter, path: Path) -> None:
    """Append, and keep a local copy, as `journal` does."""
    with path.open("ab", buffering=0) as file:
        for start in range(0, TOTAL, len(BLOCK)):
            writer.append(CONTENT[start : start + len(BLOCK)])
            file.write(CONTENT[start : start + len(BLOCK)])
            await writer.wait_room()
    await writer.wait_synced(writer.size)


def filled(store: Store, server: ThreadServer | ServerProcess, source: str) -> int:
    """What that member was filled with from there."""
    return store.counts.filled_bytes[server.location, source]


@pytest.mark.trio
async def test_with_both_other_members_gone_the_local_copy_fills_the_third(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        path = tmp_path / "copy"
        writer = claim.open_object("x", ScratchCopy(path))
        await off(three[2])
        await append_all(writer, path)
        await off(*three[:2])
        await on(three[2])
        await has(three[2], "d", "x", CONTENT)
        memory = window_of(claim).retained_bytes
        assert filled(store, three[2], "local") >= TOTAL - memory - milestone_bytes
        assert filled(store, three[2], "member") == 0
        await on(*three[:2])
        await writer.wait_synced(writer.append(b"end"))


def window_of(claim: Claim) -> SendWindow:
    window = claim.targets["x"].window
    assert window is not None
    return window


@pytest.mark.trio
@pytest.mark.parametrize("how", ["wiped", "torn", "stale", "a bit flipped"])
async def test_a_local_copy_that_is_not_the_writers_is_noticed_and_the_members_are_used(
    three: Threads, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-2, P-5
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        path = tmp_path / "copy"
        writer = claim.open_object("x", ScratchCopy(path))
        await writer.wait_synced(writer.append(b""))
        await off(three[2])
        await append_all(writer, path)
        spoil(path, how)
        with caplog.at_level(logging.INFO, "dos.client"):
            await on(three[2])
            await has(three[2], "d", "x", CONTENT)
        assert filled(store, three[2], "member") > 0
        assert filled(store, three[2], "local") <= (0 if how in ("wiped", "stale") else TOTAL // 2)
        messages = [one.getMessage() for one in caplog.records if "the local copy of x" in one.getMessage()]
        assert len(messages) == (how != "wiped"), "noticed once, and not asked again"


def spoil(path: Path, how: str) -> None:
    if how == "wiped":
        path.unlink()
    elif how == "torn":
        path.write_bytes(CONTENT[: TOTAL // 4] + bytes(TOTAL // 2))
    elif how == "stale":
        path.write_bytes(CONTENT[::-1])
    else:
        path.write_bytes(CONTENT[:5_000_000] + bytes([CONTENT[5_000_000] ^ 1]) + CONTENT[5_000_001:])


@pytest.mark.trio
async def test_a_take_over_settles_from_the_local_copy_what_members_lack(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    content = CONTENT[: 3 * milestone_bytes + 77]
    path = tmp_path / "copy"
    path.write_bytes(content + b"what was appended after it")
    async with claimed(three[:2], epoch=1, url=url_of(three)) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content[:100_000]))
        for server in three:
            await has(server, "d", "x", content[:100_000])
    async with claimed(three, epoch=2) as (store, claim):
        await claim.settle("x", len(content), prefix_digest(content), ScratchCopy(path))
        for server in three:
            await has(server, "d", "x", content)
            assert filled(store, server, "local") == len(content) - 100_000
        assert len(claim.targets["x"].milestones) == 4, "the digests on the way are known now"


@pytest.mark.trio
async def test_a_take_over_uses_no_local_copy_of_another_content(three: Threads, tmp_path: Path) -> None:
    # EVIDENCE-OF: P-2
    await init_store(url_of(three))
    content = CONTENT[: 3 * milestone_bytes + 77]
    path = tmp_path / "copy"
    path.write_bytes(content[:300_000] + bytes([content[300_000] ^ 1]) + content[300_001:])
    await off(three[2])
    async with claimed(three, epoch=1) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(content))
    await on(three[2])
    async with claimed(three, epoch=2) as (store, claim):
        await claim.settle("x", len(content), prefix_digest(content), ScratchCopy(path))
        await has(three[2], "d", "x", content)
        assert filled(store, three[2], "local") == 0
        assert filled(store, three[2], "member") == len(content)


@pytest.mark.trio
async def test_a_member_with_another_content_is_unmasked_by_the_local_copy_alone(
    three: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    async with claimed([three[0]], epoch=1, url=url_of(three)) as (_, claim):
        await off(*three[:2])  # what this one appends reaches the third alone, and is never acknowledged
        claim.open_object("x").append(b"another writer's")
        await has(three[2], "d", "x", b"another writer's")
    await off(three[2])
    await on(*three[:2])
    async with claimed(three, epoch=2) as (_, claim):
        path = tmp_path / "copy"
        writer = claim.open_object("x", ScratchCopy(path))
        await append_all(writer, path)
        await off(*three[:2])
        await on(three[2])
        link = next(one for one in claim.links() if one.member.address == three[2].location)
        await until(lambda: link.copies.states() == [ReplicaState.BROKEN], "it is broken")
        assert link.copies.problem() == "d/x on this member: different content before byte 16"
        assert await content_of(three[2], "d", "x") == b"another writer's"


@pytest.mark.trio
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.process
async def test_catching_up_takes_less_than_a_mib_of_memory_a_member(
    three_servers: list[ServerProcess],
    tmp_path: Path,
    local: bool,
) -> None:
    # EVIDENCE-OF: P-9
    await init_store(url_of(three_servers))
    async with claimed(three_servers) as (store, claim):
        path = tmp_path / "copy"
        writer = claim.open_object("x", ScratchCopy(path) if local else None)
        await writer.wait_synced(writer.append(b""))
        victim = three_servers[2]
        await trio.to_thread.run_sync(victim.kill)
        await append_all(writer, path)
        await until(lambda: window_of(claim).base > TOTAL - window_bytes_max - 2_000_000, "memory is trimmed")
        tracemalloc.start()
        try:
            await trio.to_thread.run_sync(victim.restart)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            link = next(one for one in claim.links() if one.member.address == victim.location)
            await until(lambda: link.copies.states() == [ReplicaState.IN_SYNC], "it has caught up")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert filled(store, victim, "local" if local else "member") > TOTAL - window_bytes_max - 2_500_000
        assert peak - before < 1 << 20, peak - before


@pytest.mark.trio
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_with_connections_cut_and_the_local_copy_spoiled_all_the_time_every_byte_is_right(
    three: Threads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    # EVIDENCE-OF: P-2, P-3, P-10
    # members fall behind at once
    monkeypatch.setattr("dos_client.writing.object_writer.window_bytes_max", 300_000)
    monkeypatch.setattr("dos_client.writing.object_writer._TRIM_STEP_BYTES", 1)
    rng, path = random.Random(seed), tmp_path / "copy"
    async with claimed_through_proxies(three) as (between, store, claim):
        writer = claim.open_object("x", ScratchCopy(path))
        for start in range(0, TOTAL, len(BLOCK)):
            writer.append(CONTENT[start : start + len(BLOCK)])
            with path.open("ab") as file:
                file.write(CONTENT[start : start + len(BLOCK)])
            if rng.random() < 0.1:
                rng.choice(between).cut()
            if rng.random() < 0.01:
                spoil(path, rng.choice(["torn", "stale", "a bit flipped"]))
            await writer.wait_synced(writer.size - 4 * len(BLOCK))
        await writer.wait_synced(writer.size)
        for server in three:
            await has(server, "d", "x", CONTENT)
        assert sum(store.counts.filled_bytes.values()) > 0, "else this shows nothing"
    assert not [one for one in caplog.messages if "d/x there" in one], "a copy was wrong, and repaired"


@pytest.mark.trio
@pytest.mark.parametrize("local", [True, False])
async def test_a_disk_that_fails_while_a_member_is_filled_breaks_that_copy_and_nothing_else(
    three: Threads, tmp_path: Path, local: bool
) -> None:
    # EVIDENCE-OF: P-5
    async with claimed_through_proxies(three) as (between, store, claim):
        path = tmp_path / "copy"
        writer = claim.open_object("x", ScratchCopy(path) if local else None)
        await writer.wait_synced(writer.append(b""))
        between[2].refuse()
        between[2].cut()
        await append_all(writer, path)
        link = next(one for one in claim.links() if one.member.address == between[2].location)
        between[2].heal()
        slow = [proxy.slow(Way.TO_CLIENT, delay_s=0.02) for proxy in between]
        sent, victim = store.counts.sent_bytes, between[2].location
        await until(lambda: sent[victim] > 1_000_000, "it is being filled")
        assert link.copies.states() == [ReplicaState.CATCH_UP]
        assert link.connection is not None
        link.connection.on_append_refused(claim.targets["x"].tag, PoisonedError("its disk failed"))
        assert link.copies.states() == [ReplicaState.BROKEN]
        before = sent[victim]
        for rule in slow:
            rule.end()
        await writer.wait_synced(writer.append(b"goes on"))
        assert link.copies.states() == [ReplicaState.BROKEN]
        assert sent[victim] == before, "nothing is sent to a broken copy"


class Files:
    """A local copy whose reads are counted, and which changes while it is read."""

    def __init__(self, parts: Iterable[bytes | None]) -> None:
        self.parts = list(parts)
        self.reads = 0

    def size(self) -> int:
        return TOTAL

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        content = self.parts[min(self.reads, len(self.parts) - 1)]
        self.reads += 1
        return None if content is None else content[offset : offset + max_bytes]


def target_of(local: Files) -> WriteTarget:
    window = SendWindow()
    for start in range(0, TOTAL, len(BLOCK)):
        window.append(CONTENT[start : start + len(BLOCK)])
    window.trim(TOTAL - 3 * len(BLOCK))
    return WriteTarget("x", 1, Quorums(record("abc", 2)), window, local)


@pytest.mark.trio
@pytest.mark.parametrize("later", [None, b"", CONTENT[::-1], CONTENT[:-1], CONTENT[:600_000]])
async def test_a_copy_that_changes_between_two_reads_is_trusted_no_further(later: bytes | None) -> None:
    # EVIDENCE-OF: P-2
    local = Files([CONTENT, later])
    target = target_of(local)
    first = await target.local.proved(100_000)
    assert first is not None
    assert (first.payload, first.digest) == (
        CONTENT[100_000:milestone_bytes],
        prefix_digest(CONTENT[:100_000]),
    )
    second = await target.local.proved(2 * milestone_bytes + 5)
    if later == CONTENT[:-1]:  # what is asked for is there, and right
        assert second is not None
        assert second.payload == CONTENT[2 * milestone_bytes + 5 : 3 * milestone_bytes]
    else:
        assert second is None
        assert target.local.size() == 0
        assert await target.local.proved(100_000) is None
        assert local.reads == 2, "never asked again"


@pytest.mark.trio
async def test_the_last_stretch_ends_where_the_memory_begins() -> None:
    target = target_of(Files([CONTENT]))
    base = target.base
    assert base % milestone_bytes, "else this shows nothing"
    last = await target.local.proved(base - 10)
    assert last is not None
    assert last.payload == CONTENT[base - 10 : base]


@pytest.mark.trio
async def test_of_an_object_whose_end_alone_is_known_the_whole_copy_is_folded_once() -> None:
    """A take-over knows size and digest of what it settles, and no digest on the way."""
    local = Files([CONTENT])
    target = WriteTarget("x", 1, Quorums(record("abc", 2)), None, local)
    target.seal(TOTAL, prefix_digest(CONTENT))
    assert not len(target.milestones)
    first = await target.local.proved(0)
    assert first is not None
    assert (first.payload, first.digest) == (CONTENT[:milestone_bytes], 0)
    folded = local.reads - 1
    assert folded >= 1
    second = await target.local.proved(milestone_bytes)
    assert second is not None
    assert second.payload == CONTENT[milestone_bytes : 2 * milestone_bytes]
    assert local.reads == folded + 2, "the digests on the way are known now"
    other = WriteTarget("x", 1, Quorums(record("abc", 2)), None, Files([CONTENT[::-1]]))
    other.seal(TOTAL, prefix_digest(CONTENT))
    assert await other.local.proved(0) is None
    small = WriteTarget("x", 1, Quorums(record("abc", 2)), None, Files([CONTENT[:1_000]]))
    small.seal(1_000, prefix_digest(CONTENT[:1_000]))
    whole = await small.local.proved(10)
    assert whole is not None
    assert (whole.payload, whole.digest) == (CONTENT[10:1_000], prefix_digest(CONTENT[:10]))


@pytest.mark.trio
async def test_a_local_copy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dos_client.writing.object_writer.local_read_timeout_s", 0.01)
    hang = trio.Event()

    class Hanging(Files):
        def read(self, offset: int, max_bytes: int) -> bytes | None:
            trio.from_thread.run(hang.wait)
            return super().read(offset, max_bytes)

    local = Hanging([CONTENT])
    target = target_of(local)
    try:
        assert await target.local.proved(0) is None
        assert target.local.size() == 0
    finally:
        hang.set()
