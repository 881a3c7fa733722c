"""Reads of a state chain by a client without a claim: what was committed between two checkpoints."""

from contextlib import aclosing

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.chains.state_store import StateStore, blocks_between, state_block, state_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from dos_protocol.errors import CorruptDataError
from journal import Op, Position, read_batches
from tests.journal.memory_store import MemoryStore

REGION = "words"
DIRECTORY = worker_directory(REGION, 0)
histories = st.lists(st.sampled_from(["commit", "commit", "again", "snapshot", "half"]), max_size=12)


class RecordingStore(MemoryStore):
    """Counts the bytes that are requested by `stream`."""

    streamed = 0

    def stream(self, directory, name, offset=0, end=None, seen=None):
        self.streamed += end - offset
        return super().stream(directory, name, offset, end, seen)


async def opened(memory, epoch, version=0, at=None):
    claim = memory.claim(epoch, directory=DIRECTORY)
    return await StateStore.open(claim, version=version, at=at, generation=1)


async def written(memory, history):
    """Carry out a history; return the position of each checkpoint."""
    epoch, ends = 1, []
    store = await opened(memory, epoch)
    for kind in history:
        if kind == "snapshot":
            await store.snapshot([("one", b"the state")])
            continue
        if kind == "again":  # a reset to the last checkpoint: another segment
            await store.aclose()
            epoch += 1
            store = await opened(memory, epoch, store.version if ends else 0, ends[-1] if ends else None)
            continue
        checkpoint = store.version + 1
        end = await store.commit(checkpoint, [("one", b"%d" % checkpoint), ("other", b"-%d" % checkpoint)])
        if kind == "half":  # nobody voted
            await store.aclose()
            epoch += 1
            store = await opened(memory, epoch, checkpoint - 1, ends[-1] if ends else None)
        else:
            ends.append(end)
    await store.aclose()
    return ends


async def between(memory, before, after):
    async with aclosing(blocks_between(memory, REGION, 0, before, after)) as blocks:
        return [(block.operator, block.data) async for block in blocks]


async def whole_between(memory, before, after):
    """The same from the whole chain, whose digests are checked."""
    found, in_snapshot = [], False
    chain = await state_chain(memory, REGION, 0, after)
    async with aclosing(read_batches(memory, chain, directory=DIRECTORY)) as batches:
        async for batch in batches:
            for position, record in batch:
                if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
                    in_snapshot = record.op is Op.SNAPSHOT_BEGIN
                block = state_block(position.size, record)
                if block is not None and not in_snapshot and position.size > before.size:
                    found.append((block.operator, block.data))
    return found


@given(histories)
@settings(max_examples=60)
def test_the_blocks_between_two_checkpoints_are_those_of_the_whole_chain(history) -> None:
    async def play() -> None:
        memory = MemoryStore()
        ends = await written(memory, history)
        for number, before in enumerate(ends):
            for after in ends[number:]:
                try:
                    found = await between(memory, before, after)
                except StateNotRecordedError:
                    assert "snapshot" in history
                else:
                    assert found == await whole_between(memory, before, after)

    trio.run(play)


@pytest.mark.trio
async def test_blocks_before_the_first_of_two_checkpoints_are_not_read() -> None:
    memory = RecordingStore()
    large = bytes(1_000_000)
    store = await opened(memory, 1)
    before = await store.commit(1, [("one", large)])
    after = await store.commit(2, [("one", b"2"), ("other", b"-2")])
    await store.aclose()
    memory.streamed = 0
    assert await between(memory, before, after) == [("one", b"2"), ("other", b"-2")]
    assert memory.streamed < len(large) // 2


@pytest.mark.trio
async def test_a_record_that_is_cut_off_at_the_second_checkpoint_is_an_error() -> None:
    memory = MemoryStore()
    before, after = await written(memory, ["commit", "commit"])
    with pytest.raises(CorruptDataError):
        await between(memory, before, Position(after.epoch, after.size - 1, after.digest))
