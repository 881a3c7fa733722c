"""Bodies and the space that they take, on a store in memory with small segments: every file that lives can be
read after any loss of the claim, and the chain stays short.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dos_gateway import serving
from dos_gateway.core import space
from dos_gateway.core.hadoop import HadoopError, parts_of
from dos_gateway.core.tree import MakeFolder
from dos_gateway.serving import CHAIN, ServedTree, replay
from dos_protocol.errors import DosError
from journal import ChainState, parse_segment_name, take_over
from tests.journal.memory_store import MemoryClaim, MemoryStore
from tests.shells.trio_run import run_deterministic

DIRECTORY: Final = "t.fs"
SEGMENT: Final = 6_000
SLACK: Final = 8_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "clock", trio.current_time)
    for name, size in {"segment_bytes": SEGMENT, "inline_bytes_max": 300, "piece_bytes": 500}.items():
        monkeypatch.setattr(serving, name, size)
    monkeypatch.setattr(space, "slack_bytes", SLACK)
    monkeypatch.setattr(space, "segment_bytes", SEGMENT)


def there() -> None:
    """The client waits for its answer."""


async def in_parts(data: bytes) -> AsyncGenerator[bytes]:
    for at in range(0, len(data), 170):
        yield data[at : at + 170]


async def put(served: ServedTree, path: str, body: AsyncGenerator[bytes]) -> None:
    async with aclosing(body):
        await served.create(parts_of(path), body, overwrite=True, still_there=there)


async def content(served: ServedTree, path: str) -> bytes:
    size, parts = await served.open_file(parts_of(path), 0, None)
    data = b"".join([part async for part in parts])
    assert len(data) == size
    return data


async def opened(store: MemoryStore, epoch: int, members: list[int]) -> tuple[MemoryClaim, ServedTree]:
    claim = store.claim(epoch, members, DIRECTORY)
    served = await ServedTree.open(claim, 1, served_at="", name="t", max_bytes=None)  # type: ignore[arg-type]
    return claim, served


async def serve(served: ServedTree) -> None:
    with suppress(BaseExceptionGroup):
        await served.run()


class Life:
    """A tree that is written at random, by one gateway after the other. expected: what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.expected: dict[str, bytes] = {}
        self.longest = 0

    async def run(self, epochs: int) -> None:
        for epoch in range(1, epochs + 1):
            members = self.random.choice([[1, 2], [2, 3], [1, 3]]) if epoch > 1 else [1, 2, 3]
            async with trio.open_nursery() as nursery:
                _, served = await opened(self.store, epoch, members)
                served._kept.clear()  # bodies are read from the chain
                await self.check(served)
                nursery.start_soon(serve, served)
                for _ in range(self.random.randint(5, 60)):
                    await self.change(served)
                    served._kept.clear()
                self.longest = max(self.longest, served.chain_bytes - 2 * served.tree.space.live_bytes)
                await self.check(served)
                await trio.sleep(self.random.random())  # somewhere between a roll and a release
                nursery.cancel_scope.cancel()

    async def check(self, served: ServedTree) -> None:
        names = {f"/{name}" for name in served.tree.root.children or ()}
        assert names == self.expected.keys()
        for path, data in self.expected.items():
            assert await content(served, path) == data, path

        held = {name for server in self.store.servers for name in server.objects[DIRECTORY]}
        orders = {segment.order for name in held if (segment := parse_segment_name(name)) is not None}
        assert {note[:2] for note in served.tree.space.notes} <= orders  # none that was released

    async def change(self, served: ServedTree) -> None:
        path = f"/{self.random.randint(0, 12)}"
        if path in self.expected and self.random.random() < 0.5:
            assert await served.remove(parts_of(path), recursive=True, still_there=there)
            del self.expected[path]
            return
        data = self.random.randbytes(self.random.choice([0, 10, 299, 300, 301, 500, 1700]))
        await put(served, path, in_parts(data))
        self.expected[path] = data
        if self.random.random() < 0.2:
            await trio.sleep(0.3)


async def filled(served: ServedTree) -> tuple[dict[str, bytes], str]:
    """Put files until one is refused. Return the others, and the refusal."""
    kept: dict[str, bytes] = {}
    while True:
        path, body = f"/{len(kept)}", random.Random(len(kept)).randbytes(900)
        try:
            await put(served, path, in_parts(body))
        except HadoopError as error:
            return kept, error.text
        kept[path] = body


async def full_then_room(kept_share: float) -> None:
    """A tree at its limit takes deletions only, and new files once enough of it is deleted."""
    room = 15 * SLACK
    store = MemoryStore()
    claim = store.claim(1, [1, 2, 3], DIRECTORY)
    served = await ServedTree.open(  # type: ignore[arg-type]
        claim, 1, served_at="", name="t", max_bytes=room + serving.deletions_bytes
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, served)
        expected, text = await filled(served)
        assert "t has 0 of 128 MiB (--max-bytes), 0 MiB in files: files can only be deleted" in text
        with pytest.raises(HadoopError, match="files can only be deleted"):
            await served.make_folder(parts_of("/folder"), there)
        below = space.alive_in(room)
        assert served.tree.space.live_bytes > below, "all that was put lives"
        for path in random.Random(1).sample(sorted(expected), len(expected)):
            if served.tree.space.live_bytes < kept_share * below:
                break
            assert await served.remove(parts_of(path), recursive=True, still_there=there)
            del expected[path]
        with trio.fail_after(30):  # in the end MARKs make any chain too long
            while served.chain_bytes > room:  # noqa: ASYNC110 - time makes it shorter
                await trio.sleep(0.1)
        await put(served, "/more", in_parts(b"more"))
        served._kept.clear()
        for path, data in expected.items():
            assert await content(served, path) == data
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kept_share", [0.0, 0.99], ids=["nothing is kept", "as much as may be"])
def test_a_tree_at_its_limit_takes_files_again_when_enough_is_deleted(kept_share: float) -> None:
    run_deterministic(lambda _: full_then_room(kept_share), 0)


@pytest.mark.parametrize("seed", range(12))
def test_files_stay_whole_while_space_is_given_back_and_claims_are_lost(seed: int) -> None:
    life = Life(seed)
    run_deterministic(lambda _: life.run(8), seed)
    # A roll is due after a segment; the lowest segment goes after its files were copied.
    assert life.longest <= SLACK + 4 * SEGMENT


def test_the_pieces_of_an_unfinished_upload_are_not_released() -> None:
    async def run() -> None:
        store, data = MemoryStore(), bytes(range(250)) * 8
        begun, rest = trio.Event(), trio.Event()

        async def slow() -> AsyncGenerator[bytes]:
            yield data[:1200]
            begun.set()
            await rest.wait()
            yield data[1200:]

        _, served = await opened(store, 1, [1, 2, 3])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, served)
            async with trio.open_nursery() as uploads:
                uploads.start_soon(partial(put, served, "/slow", slow()))
                await begun.wait()
                for _ in range(40):
                    await put(served, "/other", in_parts(data))
                    await trio.sleep(0.1)
                assert served.chain_bytes > 2 * served.tree.space.live_bytes + SLACK
                rest.set()
            await trio.sleep(1)
            assert await content(served, "/slow") == data
            for _ in range(20):
                await put(served, "/other", in_parts(data))
                await trio.sleep(0.1)
            assert served.chain_bytes <= 2 * served.tree.space.live_bytes + SLACK + 4 * SEGMENT
            assert await content(served, "/slow") == data
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_an_upload_waits_while_too_much_of_it_is_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "upload_unsynced_bytes_max", 2_000)

    async def run() -> None:
        store = MemoryStore()
        claim, served = await opened(store, 1, [1, 2, 3])
        claim.held, before = True, served.chain_bytes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(put, served, "/large", in_parts(bytes(50_000))))
            await wait_all_tasks_blocked()
            assert 2_000 < served.chain_bytes - before < 2_000 + 3 * 500
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_an_upload_ends_with_the_claim_under_which_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece one reaches a minority; the gateway loses the claim and takes over again."""

    async def run() -> None:
        store = MemoryStore()
        first, served = await opened(store, 1, [1, 2, 3])
        first.held = True
        parts_send, parts_receive = trio.open_memory_channel[bytes](0)
        outcome: list[str] = []

        async def upload() -> None:
            try:
                await served.create(parts_of("/f"), parts_receive, overwrite=True, still_there=there)
            except HadoopError as error:
                outcome.append(error.java)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, served)
            nursery.start_soon(upload)
            await parts_send.send(b"a" * 600)
            await wait_all_tasks_blocked()
            _, again = await opened(store, 2, [1, 2])
            for member in (1, 2, 3):
                first.deliver(member)  # two refuse it
            async with parts_send:
                await parts_send.send(b"b" * 600)
            await wait_all_tasks_blocked()
            assert outcome == ["org.apache.hadoop.ipc.StandbyException"]
            assert again.tree.find(parts_of("/f")).node is None
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def put_eight(served: ServedTree) -> None:
    """Put files over several segments, slowly enough for them to roll."""
    for number in range(8):
        await put(served, f"/{number}", in_parts(bytes([number]) * 1700))
        await trio.sleep(0.3)


def test_a_member_that_was_away_is_given_the_bodies_below_the_snapshot() -> None:
    async def run() -> None:
        store = MemoryStore()
        async with trio.open_nursery() as nursery:
            _, served = await opened(store, 1, [1, 2, 3])
            store.servers[2].up = False
            nursery.start_soon(serve, served)
            await put_eight(served)
            nursery.cancel_scope.cancel()
        store.servers[2].up = True
        async with trio.open_nursery() as nursery:
            _, served = await opened(store, 2, [1, 2, 3])
            nursery.start_soon(serve, served)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        notes = [note for note in served.tree.space.notes if note.length]
        assert len(notes) > 2
        held = store.servers[2].objects[DIRECTORY]
        for note in notes:
            name = next(one for one in held if (s := parse_segment_name(one)) and s.order == note[:2])
            assert len(held[name]) >= note.length

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_body_is_read_while_it_is_copied_forward_and_its_segment_is_released() -> None:
    """A copy is on no member yet when the body is read; a segment goes while it is being read."""

    async def run() -> None:
        store, data = MemoryStore(), random.Random(1).randbytes(1700)
        claim, served = await opened(store, 1, [1, 2, 3])
        await put(served, "/f", in_parts(data))
        await served._move(lambda: served._writer.roll(served._snapshot()))
        node = served.tree.get(("f",))
        read, got = claim.read, []

        async def interrupted(name: str, offset: int, max_bytes: int) -> bytes:
            claim.read = read  # type: ignore[method-assign]
            await served._copy_forward(node.id)
            floor = served.tree.space.floor_above(served.tree.space.notes[0])
            await served._move(lambda: served._writer.release(floor))
            served.tree.space.forget_below(floor)
            return await read(name, offset, max_bytes)

        claim.read = interrupted  # type: ignore[method-assign, assignment]
        assert await content(served, "/f") == data
        assert len(served.tree.space.notes) == 2

        async def get() -> None:
            got.append(await content(served, "/f"))

        claim.held, served._lease.until = True, float("inf")
        await served._copy_forward(node.id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            await wait_all_tasks_blocked()
            assert got == []
            for member in (1, 2):
                claim.deliver(member)
        assert got == [data]

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_segment_that_was_released_meanwhile_is_not_filled_again() -> None:
    async def run() -> None:
        store = MemoryStore()
        async with trio.open_nursery() as nursery:
            _, served = await opened(store, 1, [1, 2, 3])
            nursery.start_soon(serve, served)
            await put_eight(served)
            nursery.cancel_scope.cancel()
        claim, served = await opened(store, 2, [1, 2, 3])
        for file in list(served.tree.by_id):
            await served._copy_forward(file)
        notes, settled = served.tree.space.notes, []

        async def settle(name: str, size: int, digest: int) -> None:
            settled.append(name)
            served.tree.space.forget_below(notes[-1][:2])

        claim.settle = settle  # type: ignore[method-assign, assignment]
        await served._settle_bodies()
        assert len(notes) > 2
        assert len(settled) == 1

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_body_that_is_not_what_was_written_is_refused() -> None:
    async def run() -> None:
        store = MemoryStore()
        _, served = await opened(store, 1, [1, 2, 3])
        await put(served, "/f", in_parts(b"y" * 1000))
        for server in store.servers:
            for name, data in server.objects[DIRECTORY].items():
                if name.startswith(f"{CHAIN}."):
                    data[:] = data.replace(b"y" * 400, b"z" * 400)
        with pytest.raises(HadoopError, match="not those that were written"):
            await content(served, "/f")

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_errors_of_the_store_end_the_serving() -> None:
    async def run() -> None:
        store = MemoryStore()
        first, served = await opened(store, 1, [1, 2, 3])
        await opened(store, 2, [1, 2, 3])
        with pytest.raises(BaseExceptionGroup) as caught:
            await served.run()
        assert caught.group_contains(DosError, depth=None)
        assert served.over.is_set()
        assert first.lost is not None

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_other_tasks_run_while_a_tree_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of a replay may have many nodes; without a pause the process seems to stand still."""
    monkeypatch.setattr(serving, "segment_bytes", 1_000_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def turns_of_a_replay(claim: MemoryClaim, state: ChainState, nodes: int) -> int:
        monkeypatch.setattr(serving, "yield_nodes", nodes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            before = turns
            tree = await replay(claim, state)  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()
        assert len(tree.root.children or ()) == 2_000
        return turns - before

    async def run(_: object) -> None:
        store = MemoryStore()
        _, served = await opened(store, 1, [1, 2, 3])
        for number in range(2_000):
            served._change(MakeFolder(f"/{number}", 1))
        await served._writer.wait_synced()
        claim = store.claim(2, [1, 2, 3], DIRECTORY)
        state = await take_over(claim, CHAIN, generation=1)
        without = await turns_of_a_replay(claim, state, 10**9)
        assert without + 150 < await turns_of_a_replay(claim, state, 10)

    run_deterministic(run, 0)
