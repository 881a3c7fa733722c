"""The versioned store and the steps log against a plain model, on the in-memory store that obeys the real
one's rules.
"""

from contextlib import aclosing

import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.chains.state_blocks import block_schema, encode_block, make_block
from checkpoint.chains.state_store import STATE_CHAIN, StateStore, blocks_between, state_block, state_chain
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from checkpoint.core.records.divisions import Division
from checkpoint.core.records.manifest import Rolling
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import hash_keys
from dos_protocol.errors import ClosedError, CorruptDataError, FencedError, LocalProtocolError
from journal import ORIGIN, ChainWriter, Op, Position, Record, Scratch, read_batches, take_over
from tests.journal.memory_store import MemoryStore

SCHEMA = block_schema(pa.schema([("key", pa.string())]), pa.schema([("value", pa.int64())]))


def block(changes):
    """Encoded blocks of {key: value, None for deleted}."""
    keys = pa.array(list(changes), pa.string())
    values = pa.array(list(changes.values()), pa.int64())
    dead = pa.array([value is None for value in changes.values()], pa.bool_()).to_numpy(zero_copy_only=False)
    return encode_block(make_block(SCHEMA, [keys], hash_keys([keys]), [values], dead))


async def loaded(store):
    """operator -> {key: value}."""
    found = {}
    for operator, table in (await store.load()).items():
        pairs = zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
        found[operator] = dict(pairs)
    return {operator: rows for operator, rows in found.items() if rows}


async def opened(memory, epoch, version, at, scratch=None):
    return await StateStore.open(memory.claim(epoch), version=version, at=at, generation=1, scratch=scratch)


changes = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 99), max_size=4)
steps = st.lists(
    st.tuples(
        st.sampled_from(["commit", "commit", "commit", "reset", "snapshot", "half"]),
        st.integers(0, 9),
        changes,
        changes,
    ),
    max_size=15,
)


@given(steps, st.booleans())
@settings(max_examples=60)
def test_a_version_is_what_was_committed_whatever_lies_about(tmp_path_factory, history, cached) -> None:
    # EVIDENCE-OF: P-6
    scratch = Scratch(tmp_path_factory.mktemp("scratch")) if cached else None
    trio.run(play, history, scratch)


async def play(history, scratch) -> None:
    memory = MemoryStore()
    versions = {0: (None, {})}
    now: dict = {}
    epoch = 1
    store = await opened(memory, epoch, 0, None, scratch)
    for kind, number, one, other in history:
        if kind in ("commit", "half"):
            now = {op: dict(rows) for op, rows in now.items()}
            for operator, change in (("one", one), ("other", other)):
                rows = now.setdefault(operator, {})
                rows.update(change)
                now[operator] = {key: value for key, value in rows.items() if value is not None}
            now = {operator: rows for operator, rows in now.items() if rows}
            encoded = [("one", data) for data in block(one)] + [("other", data) for data in block(other)]
            checkpoint = store.version + 1
            position = await store.commit(checkpoint, encoded)
            if kind == "commit":  # else nobody voted: the manifest does not know this position
                versions[checkpoint] = (position, now)
                continue
        if kind == "snapshot":
            parts = [(op, data) for op, rows in now.items() for data in block(rows)]
            await store.snapshot(parts)
            continue
        await store.aclose()
        epoch += 1
        chosen = sorted(versions)[number % len(versions)] if kind == "reset" else max(versions)
        versions = {checkpoint: value for checkpoint, value in versions.items() if checkpoint <= chosen}
        position, now = versions[chosen]
        store = await opened(memory, epoch, chosen, position, scratch)
        assert await loaded(store) == now
    await store.aclose()
    for checkpoint, (position, rows) in versions.items():
        epoch += 1
        store = await opened(memory, epoch, checkpoint, position)
        assert await loaded(store) == rows


async def commit(store, checkpoint, changes_):
    return await store.commit(checkpoint, [("one", data) for data in block(changes_)])


@pytest.mark.trio
async def test_a_commit_returns_only_when_its_bytes_are_on_the_quorum() -> None:
    # EVIDENCE-OF: P-6
    memory = MemoryStore()
    claim = memory.claim(1)
    store = await StateStore.open(claim, version=0, at=None, generation=1)
    claim.held = True
    with trio.move_on_after(0.05) as scope:
        await commit(store, 1, {"a": 1})
    assert scope.cancelled_caught
    assert store.version == 0


@pytest.mark.trio
async def test_a_store_that_lost_its_claim_commits_nothing() -> None:
    # EVIDENCE-OF: P-4
    memory = MemoryStore()
    claim = memory.claim(1)
    store = await StateStore.open(claim, version=0, at=None, generation=1)
    position = await commit(store, 1, {"a": 1})
    newer = await opened(memory, 2, 1, position)
    with pytest.raises(FencedError):
        await commit(store, 2, {"a": 2})
    assert await loaded(newer) == {"one": {"a": 1}}
    await newer.aclose()
    with pytest.raises(ClosedError):
        await commit(newer, 2, {"a": 3})


@pytest.mark.trio
async def test_versions_only_rise_and_go_with_their_position() -> None:
    memory = MemoryStore()
    store = await opened(memory, 1, 0, None)
    position = await commit(store, 4, {"a": 1})
    with pytest.raises(LocalProtocolError, match="checkpoint 4 is not above version 4"):
        await commit(store, 4, {})
    for epoch, version, at in ((2, 0, position), (3, 3, None)):
        with pytest.raises(LocalProtocolError, match="version 0, and no other, has no position"):
            await opened(memory, epoch, version, at)


@pytest.mark.trio
async def test_a_snapshot_is_due_by_what_a_restore_would_have_to_read(monkeypatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr(limits, "snapshot_bytes_min", 3_000)
    memory = MemoryStore()
    store = await opened(memory, 1, 0, None)
    checkpoint = 0
    sizes = []
    for _ in range(3):
        while not store.snapshot_due:
            checkpoint += 1
            await commit(store, checkpoint, {"a": checkpoint})
        sizes.append(checkpoint)
        await store.snapshot([("one", data) for data in block({"a": checkpoint})])
        assert not store.snapshot_due
    checkpoint += 1
    position = await commit(store, checkpoint, {"b": 1})
    await store.aclose()
    again = await opened(memory, 2, checkpoint, position)
    assert again.replayed_bytes < 6_000
    assert await loaded(again) == {"one": {"a": checkpoint - 1, "b": 1}}
    assert len(sizes) == 3


@pytest.mark.trio
@pytest.mark.parametrize(
    "record",
    [
        Record(Op.STATE_BLOCK, ints=(1,), strings=(b"one",)),
        Record(Op.STATE_BLOCK, ints=(1,), strings=(b"one", b"no arrow stream")),
    ],
)
async def test_a_block_that_is_none_is_named_and_nothing_is_used(record) -> None:
    # EVIDENCE-OF: P-2
    memory = MemoryStore()
    claim = memory.claim(1)
    state = await take_over(claim, STATE_CHAIN, at=ORIGIN, generation=1)
    writer = await ChainWriter.open(claim, STATE_CHAIN, state, 1)
    position = writer.append(record)
    await writer.wait_synced(position)
    store = await opened(memory, 2, 1, position)
    with pytest.raises(CorruptDataError):
        await store.load()


# --- steps ---------------------------------------------------------------------------------------


async def log(memory, epoch, after=0):
    return await StepsLog.open(memory.claim(epoch), after_step=after, generation=1)


def sources(number):
    return {"n": {"s": (number, number + 1)}}


@pytest.mark.trio
async def test_divisions_survive_every_reset_and_are_divided_anew_behind_what_all_have() -> None:
    # EVIDENCE-OF: P-7
    memory = MemoryStore()
    first = await log(memory, 1)
    for step in range(1, 8):
        first.record(step, 100 + step, sources(step))
    await first.synced(7)
    second = await log(memory, 2, after=3)
    assert second.last_step == 7
    assert second.divisions(3, 5) == [Division(n, 100 + n, sources(n)) for n in (4, 5)]
    second.record(6, 0, sources(60))  # 5 is what all have: 6 and 7 are void
    assert second.last_step == 6
    await second.synced(6)
    third = await log(memory, 3, after=3)
    assert [d.sources for d in third.divisions(3, 99)] == [sources(4), sources(5), sources(60)]


@pytest.mark.trio
async def test_the_position_of_a_step_is_synced_before_it_is_notified() -> None:
    # EVIDENCE-OF: P-7
    memory = MemoryStore()
    claim = memory.claim(1)
    steps_log = await StepsLog.open(claim, after_step=0, generation=1)
    position = steps_log.record(1, 0, sources(1))
    assert await steps_log.synced(1) == position
    claim.held = True
    later = steps_log.record(2, 0, sources(2))
    assert await steps_log.synced(1) == position
    with trio.move_on_after(0.05) as scope:
        await steps_log.synced(2)
    assert scope.cancelled_caught
    assert steps_log.end == later


@pytest.mark.trio
async def test_a_step_that_leaves_a_hole_is_not_recorded() -> None:
    memory = MemoryStore()
    steps_log = await log(memory, 1, after=4)
    with pytest.raises(LocalProtocolError, match="step 6 cannot be divided after step 4"):
        steps_log.record(6, 0, sources(6))
    with pytest.raises(LocalProtocolError, match="step 4 cannot be divided after step 4"):
        steps_log.record(4, 0, sources(4))
    steps_log.record(5, 0, sources(5))


@pytest.mark.trio
async def test_steps_below_every_checkpoint_are_forgotten_also_in_the_chain(monkeypatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr(limits, "snapshot_bytes_min", 2_000)
    memory = MemoryStore()
    steps_log = await log(memory, 1)
    for step in range(1, 60):
        steps_log.record(step, 0, sources(step))
        if step % 10 == 0:
            await steps_log.forget(step - 3)
    await steps_log.synced(59)
    again = await log(memory, 2, after=50)
    assert [d.step for d in again.divisions(50, 99)] == list(range(51, 60))
    assert again.replayed_bytes < 6_000
    early = await log(memory, 3, after=2)
    assert early.last_step == 2  # trimmed: nothing behind step 2 can be replayed exactly
    assert STEPS_CHAIN == "steps"


@pytest.mark.trio
async def test_no_division_counts_that_was_recorded_before_the_input_was_divided_anew() -> None:
    """A worker of a later layout continues at the head of its chain, which has steps that were taken back."""
    memory = MemoryStore()
    steps_log = await StepsLog.open(memory.claim(1), after_step=0, generation=1)
    for step in range(1, 6):
        steps_log.record(step, 1, sources(step))
    await steps_log.synced(5)
    await steps_log.aclose()
    for epoch in (2, 3):
        steps_log = await StepsLog.open(memory.claim(epoch), after_step=2, generation=1)
        assert [one.step for one in steps_log.divisions(2, 99)] == ([3, 4, 5] if epoch == 2 else [])
        steps_log.void(2)
        await steps_log.synced(2)
        await steps_log.aclose()


incarnations = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=6)
"""Of each: steps recorded, and how far below the last step the last checkpoint is."""


@pytest.mark.trio
@given(incarnations)
async def test_a_rolled_chain_has_every_step_above_the_last_checkpoint(changes) -> None:
    """However often the chain was rolled in between."""
    # EVIDENCE-OF: P-7
    memory, known = MemoryStore(), {}
    at = 0
    for epoch, (count, back) in enumerate(changes, 1):
        rolling = Rolling(snapshot_bytes_min=0)
        steps_log = await StepsLog.open(memory.claim(epoch), after_step=at, generation=1, rolling=rolling)
        assert steps_log.divisions(at, 99) == [known[step] for step in sorted(known) if step > at]
        for step in range(at + 1, at + 1 + count):
            position = steps_log.record(step, epoch, sources(step))
            for void in [one for one in known if one >= step]:
                del known[void]
            known[step] = Division(step, epoch, sources(step))
            assert await steps_log.synced(step) == position
        at = max(at, max(known, default=at) - back)
        await steps_log.forget(at)
        await steps_log.aclose()


# --- reads without a claim --------------------------------------------------------------------------------


REGION = "words"
DIRECTORY = worker_directory(REGION, 0)
histories = st.lists(st.sampled_from(["commit", "commit", "again", "snapshot", "half"]), max_size=12)


class RecordingStore(MemoryStore):
    """Counts the bytes that are requested by `stream`."""

    streamed = 0

    def stream(self, directory, name, offset=0, end=None, seen=None):
        self.streamed += end - offset
        return super().stream(directory, name, offset, end, seen)


async def opened_to_read(memory, epoch, version=0, at=None):
    claim = memory.claim(epoch, directory=DIRECTORY)
    return await StateStore.open(claim, version=version, at=at, generation=1)


async def written(memory, history):
    """Carry out a history; return the position of each checkpoint."""
    epoch, ends = 1, []
    store = await opened_to_read(memory, epoch)
    for kind in history:
        if kind == "snapshot":
            await store.snapshot([("one", b"the state")])
            continue
        if kind == "again":  # a reset to the last checkpoint: another segment
            await store.aclose()
            epoch += 1
            store = await opened_to_read(
                memory, epoch, store.version if ends else 0, ends[-1] if ends else None
            )
            continue
        checkpoint = store.version + 1
        end = await store.commit(checkpoint, [("one", b"%d" % checkpoint), ("other", b"-%d" % checkpoint)])
        if kind == "half":  # nobody voted
            await store.aclose()
            epoch += 1
            store = await opened_to_read(memory, epoch, checkpoint - 1, ends[-1] if ends else None)
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


@pytest.mark.trio
@given(histories)
@settings(max_examples=60)
async def test_the_blocks_between_two_checkpoints_are_those_of_the_whole_chain(history) -> None:
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


@pytest.mark.trio
async def test_blocks_before_the_first_of_two_checkpoints_are_not_read() -> None:
    memory = RecordingStore()
    large = bytes(1_000_000)
    store = await opened_to_read(memory, 1)
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
