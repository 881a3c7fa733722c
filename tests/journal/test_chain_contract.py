"""What a chain does on any store that fits `journal.ports`: run on the in-memory store, on the local disk and
on three real servers.

The tests `test_takeover*.py` rely on the in-memory store; these tests compare it with real servers.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from dos_protocol.errors import ClosedError, FencedError, LocalProtocolError
from journal import (
    ORIGIN,
    ChainWriter,
    LostBytesError,
    Op,
    Position,
    Record,
    Scratch,
    inspect_chain,
    read_records,
    take_over,
)
from journal.core.chain import parse_segment_name
from journal.core.record import decode_all
from journal.limits import record_body_bytes_max
from tests.journal.contract_bench import NOT_ON_DISK, Bench, bench, note, url
from tests.journal.memory_store import DIRECTORY, MemoryStore

pytestmark = pytest.mark.trio


__all__ = ["bench", "url"]


async def test_a_journal_that_never_was_has_no_end(bench: Bench) -> None:
    claim, state = await bench.take_over(1)
    assert (state.end, state.segments, state.bytes, state.seen) == (None, (), 0, 0)
    assert await bench.inspect() == []
    assert claim.epoch == 1


async def test_records_return_in_order_with_their_positions(bench: Bench) -> None:
    # EVIDENCE-OF: P-1
    claim, state = await bench.take_over(1)
    writer = await ChainWriter.open(claim, "J", state, 1)
    opened = writer.end
    positions = [writer.append(note(f"{n}" * n)) for n in range(50)]
    assert writer.synced <= writer.end.size
    await writer.wait_synced(positions[-1])
    assert writer.synced == writer.end.size == positions[-1].size
    state = await inspect_chain(bench.store, bench.directory, "J")
    steps = [step async for step in read_records(bench.store, state, directory=bench.directory)]
    assert [position for position, _ in steps] == [opened, *positions]
    assert [record for _, record in steps][1:] == [note(f"{n}" * n) for n in range(50)]
    assert state.end == positions[-1]


@NOT_ON_DISK
async def test_a_second_writer_takes_over_and_the_first_is_fenced_for_good(bench: Bench) -> None:
    # EVIDENCE-OF: P-4
    first = await bench.write(1, "ab")
    second = await bench.write(2, "c")
    first_end = first.end

    async def go_on() -> None:
        first.append(note("x"))
        await first.wait_synced()

    with pytest.raises(FencedError):
        await go_on()
    with pytest.raises(FencedError):
        first.append(note("y"))
    with pytest.raises(FencedError):
        await first.roll()
    assert second.segment.endswith(f"{2:016x}.{first_end.size:016x}")
    assert await bench.inspect() == ["a", "b", "c"]
    with pytest.raises(FencedError):
        await bench.claim(1)


async def test_a_record_of_many_mebibytes_goes_through_in_one_piece(bench: Bench) -> None:
    big = Record(Op.STATE_BLOCK, ints=(1,), strings=(b"counts", os.urandom(9 << 20)))
    claim, state = await bench.take_over(1)
    writer = await ChainWriter.open(claim, "J", state, 1)
    await writer.wait_synced(writer.append(big))
    state = await inspect_chain(bench.store, bench.directory, "J")
    steps = [step async for step in read_records(bench.store, state, directory=bench.directory)]
    assert steps[-1] == (writer.end, big)
    with pytest.raises(LocalProtocolError, match="split it"):
        writer.append(Record(Op.STATE_BLOCK, strings=(bytes(record_body_bytes_max),)))
    assert writer.append(note("still in order")).size == writer.end.size


async def test_a_roll_continues_in_a_new_segment_of_the_same_epoch(bench: Bench) -> None:
    writer = await bench.write(1, "ab")
    before = writer.end
    await writer.roll()
    assert writer.segment.endswith(f"{1:016x}.{before.size:016x}")
    await writer.wait_synced(writer.append(note("c")))
    await writer.wait_synced(before)
    assert await bench.inspect() == ["a", "b", "c"]
    _, state = await bench.take_over(2)
    assert [span.base for span in state.segments] == [0, before.size]
    assert await bench.read(state) == ["a", "b", "c"]


async def test_a_chain_that_is_trimmed_while_it_is_inspected_is_listed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await bench.write(1, ["gone"])
    await writer.roll()
    begin = parse_segment_name(writer.segment)
    assert begin is not None
    await writer.wait_synced(writer.append(note("kept")))
    views, listed = [], bench.store.inspect

    async def is_deleted() -> bool:
        names = [name for answer in (await listed(bench.directory)).answers.values() for name in answer]
        return all(parse_segment_name(name).order >= begin.order for name in names)  # type: ignore[union-attr]

    async def trimmed_after_the_list(directory: str) -> Any:
        views.append(await listed(directory))
        if len(views) == 1:
            await writer.release(begin.order)
            with trio.fail_after(30):
                while not await is_deleted():  # noqa: ASYNC110 - from outside
                    await trio.sleep(0.01)
        return views[-1]

    monkeypatch.setattr(bench.store, "inspect", trimmed_after_the_list)
    assert await bench.inspect() == ["kept"]
    assert len(views) == 2


async def test_a_finished_snapshot_is_where_a_replay_begins(bench: Bench) -> None:
    writer = await bench.write(1, "ab")
    before = writer.end
    assert writer.bytes_since_snapshot == before.size
    await writer.roll([note("a and b")])
    assert writer.bytes_since_snapshot == 0
    await writer.wait_synced(writer.append(note("c")))
    claim, state = await bench.take_over(2)
    assert [span.base for span in state.segments] == [before.size]
    assert state.bytes < writer.end.size
    assert await bench.read(state) == ["a and b", "c"]
    second = await ChainWriter.open(claim, "J", state, 1)
    assert second.bytes_since_snapshot == second.end.size - state.snapshot_size
    _, earlier = await bench.take_over(3, at=before)
    assert await bench.read(earlier) == ["a", "b"], "what lies below is still there for an older cut"


async def test_what_a_snapshot_replaces_is_needed_until_its_end_is_synced_on_a_quorum() -> None:
    """`floor` is what R14 deletes below: a snapshot that a crash may still cut short replaces nothing."""
    # EVIDENCE-OF: P-1
    claim = MemoryStore().claim(1)
    writer = await ChainWriter.open(claim, "J", await take_over(claim, "J", generation=1), 1)
    below = writer.floor
    before = writer.append(note("a"))
    await writer.wait_synced(before)

    def records() -> Iterable[Record]:
        claim.held = True
        yield note("all of it")

    await writer.roll(records())
    whole = writer.end.size - before.size
    for size in (whole - 1, whole):
        assert writer.floor == below
        for member in (1, 2):
            claim.deliver(member, writer.segment, size)
    assert writer.floor == (1, before.size)


async def test_a_snapshot_may_begin_the_first_segment_of_a_writer(bench: Bench) -> None:
    await bench.write(1, "ab")
    claim, state = await bench.take_over(2)
    writer = await ChainWriter.open(claim, "J", state, 1, snapshot=[note("a and b")])
    await writer.wait_synced(writer.append(note("c")))
    _, state = await bench.take_over(3)
    assert await bench.read(state) == ["a and b", "c"]
    assert len(state.segments) == 1


class DiedError(Exception):
    """The writer's end."""


async def test_a_snapshot_that_its_writer_did_not_finish_is_as_if_it_had_never_begun(bench: Bench) -> None:
    writer = await bench.write(1, "ab")

    def records() -> Iterable[Record]:
        yield note("half of")
        raise DiedError

    with pytest.raises(DiedError):
        await writer.roll(records())
    with pytest.raises(ClosedError):
        writer.append(note("c"))
    second = await bench.write(2, "c")
    assert await bench.inspect() == ["a", "b", "c"]
    _, state = await bench.take_over(3)
    assert await bench.read(state) == ["a", "b", "c"]
    assert second.bytes_since_snapshot > 0


async def test_a_chain_is_rolled_back_to_the_position_ordered(bench: Bench) -> None:
    # EVIDENCE-OF: P-6
    first = await bench.write(1, "ab")
    cut = first.end
    first.append(note("lost"))
    await first.wait_synced()
    newer = await bench.write(2, "other")
    third = await bench.write(3, "c", at=cut)
    assert await bench.inspect() == ["a", "b", "c"]
    for position, expected in ((cut, "ab"), (third.end, "abc")):
        _, state = await bench.take_over(third.end.epoch + position.size, at=position)
        assert await bench.read(state) == list(expected)
    assert newer.end.epoch == 2


async def test_a_chain_is_rolled_back_to_nothing(bench: Bench) -> None:
    await bench.write(1, "ab")
    await bench.write(2, "c", at=ORIGIN)
    assert await bench.inspect() == ["c"]


async def test_a_position_whose_digest_is_another_line_of_history_is_refused(bench: Bench) -> None:
    first = await bench.write(1, "ab")
    claim = await bench.claim(2)
    with pytest.raises(LostBytesError):
        await take_over(claim, "J", at=Position(1, first.end.size, first.end.digest ^ 1), generation=1)


@NOT_ON_DISK
async def test_a_claim_settles_a_segment_at_one_length(bench: Bench) -> None:
    writer = await bench.write(1, ["a", "b"])
    claim, state = await bench.take_over(2)
    assert state.end == writer.end
    with pytest.raises(LocalProtocolError, match="known to this claim"):
        await claim.settle(writer.segment, 1, 0)


async def test_an_unpipelined_chain_waits_for_each_record(bench: Bench) -> None:
    claim, state = await bench.take_over(1)
    writer = await ChainWriter.open(claim, "J", state, 1, pipelined=False)
    for text in "abc":
        await writer.wait_synced(writer.append(note(text)))
    assert await bench.inspect() == ["a", "b", "c"]
    await writer.roll([note(text) for text in "xyz"])
    assert await bench.inspect() == ["x", "y", "z"], "every record of this snapshot was waited for"


async def test_records_of_an_unpipelined_snapshot_are_sent_one_at_a_time() -> None:
    """R9: each proves the one before it, so the one before it must be on a quorum when it is sent."""
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", await take_over(claim, "J", generation=1), 1, pipelined=False)
    async with trio.open_nursery() as nursery:
        claim.held = True
        nursery.start_soon(writer.roll, [note("x"), note("y")])
        for op in (Op.SEGMENT_START, Op.SNAPSHOT_BEGIN, Op.OUTPUT, Op.OUTPUT, Op.SNAPSHOT_END):
            await trio.testing.wait_all_tasks_blocked()
            sent = claim.objects[writer.segment]
            under_way, _ = decode_all(bytes(sent._data[sent.synced :]))
            assert [record.op for _, record in under_way] == [op]
            claim.deliver(1)
            claim.deliver(2)
    assert sent.synced == sent.size
    assert await Bench(store, DIRECTORY).inspect() == ["x", "y"]


async def test_a_closed_writer_appends_nothing(bench: Bench) -> None:
    claim, state = await bench.take_over(1)
    async with await ChainWriter.open(claim, "J", state, 1) as writer:
        await writer.wait_synced(writer.append(note("a")))
    with pytest.raises(ClosedError, match="take the chain over again"):
        writer.append(note("b"))
    with pytest.raises(ClosedError):
        await writer.roll()
    assert await bench.inspect() == ["a"]


async def test_the_writers_own_records_are_not_the_callers_to_append(bench: Bench) -> None:
    writer = await bench.write(1, "a")
    for op in (Op.SEGMENT_START, Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
        with pytest.raises(LocalProtocolError, match="is appended by the writer only"):
            writer.append(Record(op))
    with pytest.raises(LocalProtocolError, match="is beyond the end of chain"):
        await writer.wait_synced(Position(1, writer.end.size + 1, 0))


async def test_an_epoch_opens_a_chain_once(bench: Bench) -> None:
    claim, state = await bench.take_over(1)
    await ChainWriter.open(claim, "J", state, 1)
    with pytest.raises(LocalProtocolError, match="already opened under this claim"):
        await ChainWriter.open(claim, "J", state, 1)


async def test_two_chains_of_one_claim_do_not_mix(bench: Bench) -> None:
    claim = await bench.claim(1)
    writers = {chain: await ChainWriter.open(claim, chain, None, 1) for chain in ("state", "steps")}
    for chain, writer in writers.items():
        await writer.wait_synced(writer.append(note(chain)))
    for chain in writers:
        state = await inspect_chain(bench.store, bench.directory, chain)
        assert await bench.read(state) == [chain]


async def test_the_scratch_is_used_where_it_agrees_and_filled_where_it_does_not(
    bench: Bench, tmp_path: Path
) -> None:
    scratch = Scratch(tmp_path / "scratch")
    claim, state = await bench.take_over(1)
    async with await ChainWriter.open(claim, "J", state, 1, scratch) as writer:
        await writer.wait_synced(writer.append(note("a")))
        cut = writer.end
        await writer.wait_synced(writer.append(note("b")))
    claim, state = await bench.take_over(2, at=cut)
    assert scratch.covers(state.segments[0]), "what was appended is mirrored, and longer than the cut"
    assert await bench.read(state, scratch=scratch) == ["a"]
    mirrored = bytearray((tmp_path / "scratch" / writer.segment).read_bytes())
    mirrored[cut.size - 1] ^= 1
    (tmp_path / "scratch" / writer.segment).write_bytes(mirrored)
    assert not scratch.covers(state.segments[0])
    assert await bench.read(state, scratch=scratch) == ["a"]
    assert scratch.covers(state.segments[0]), "read once from the store, and kept"
