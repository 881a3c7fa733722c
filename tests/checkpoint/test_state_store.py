"""The versioned store and the steps log against a plain model, on the in-memory store that obeys the real
one's rules.
"""

from contextlib import aclosing, contextmanager
from itertools import pairwise

import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.chains.state_blocks import (
    EncodedBlock,
    block_schema,
    encode_block,
    encoded_blocks,
    make_block,
)
from checkpoint.chains.state_index import BlockEntry, StateIndex, block_record, encode_index
from checkpoint.chains.state_store import (
    STATE_CHAIN,
    StateStore,
    blocks_at,
    blocks_between,
    state_block,
    state_chain,
)
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from checkpoint.core.records.divisions import Division
from checkpoint.core.records.manifest import Rolling
from checkpoint.core.region import worker_directory
from checkpoint.errors import StateNotRecordedError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dos_protocol.errors import ClosedError, CorruptDataError, FencedError, LocalProtocolError
from journal import (
    ORIGIN,
    ChainWriter,
    LostBytesError,
    Op,
    Position,
    Record,
    RecordDecoder,
    Scratch,
    TornRecordError,
    read_batches,
    read_span,
    take_over,
)
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


# --- reads of some hashes ---------------------------------------------------------------------------------


NUMBERS = block_schema(pa.schema([("key", pa.int64())]), pa.schema([("value", pa.int64())]))


def numbered(table, values, by_key=True):
    """The blocks of a table with {key: value, None for deleted}."""
    keys = pa.array(list(values), pa.int64())
    dead = pa.array([value is None for value in values.values()], pa.bool_()).to_numpy(zero_copy_only=False)
    made = make_block(NUMBERS, [keys], hash_keys([keys]), [pa.array(list(values.values()), pa.int64())], dead)
    return encoded_blocks(table, made, by_key=by_key)


def rows_within(blocks, ranges):
    """Table -> the rows of its blocks, those of tables by key with a hash in the ranges only, in order."""
    found = {}
    for block in blocks:
        decoded = block.decoded()
        hashes = decoded.column(HASH_COLUMN).to_pylist()
        for row, one in zip(decoded.to_pylist(), hashes, strict=True):
            if block.operator == "whole" or any(first <= one <= last for first, last in ranges):
                found.setdefault(block.operator, []).append((block.checkpoint, row))
    return found


async def played(memory, history):
    """Carry out (kind, changes) pairs; return the position of each checkpoint."""
    store, state, ends = await opened_to_read(memory, 1), {}, [ORIGIN]
    epoch = 1
    for kind, values in history:
        if kind == "snapshot":
            state = {key: value for key, value in state.items() if value is not None}
            await store.snapshot(numbered("keyed", state) + numbered("whole", {1: len(ends)}, by_key=False))
            continue
        if kind == "reset":  # the last commit is of no checkpoint
            at = ends[-1] if len(ends) > 1 else None
            await store.commit(store.version + 1, numbered("keyed", {1: 0, 2: 0}))
            await store.aclose()
            epoch += 1
            store = await opened_to_read(memory, epoch, len(ends) - 1, at)
            continue
        state |= values
        blocks = numbered("keyed", values) + numbered("whole", {1: len(ends)}, by_key=False)
        ends.append(await store.commit(store.version + 1, blocks))
    await store.aclose()
    return ends


async def read(blocks):
    async with aclosing(blocks):
        return [block async for block in blocks]


hash_of = st.integers(0, 2**64 - 1)
ranges_read = st.lists(hash_of, max_size=6).map(
    lambda bounds: list(zip(*[iter(sorted(bounds)[: len(bounds) // 2 * 2])] * 2, strict=True))
)
numbers = st.dictionaries(st.integers(0, 60), st.none() | st.integers(0, 9), max_size=50)
indexed_histories = st.lists(
    st.tuples(st.sampled_from(["commit", "commit", "commit", "snapshot", "reset"]), numbers), max_size=6
)


@pytest.mark.trio
@given(indexed_histories, ranges_read)
@settings(max_examples=80)
async def test_what_is_read_of_some_hashes_is_what_the_whole_state_has_of_them(history, ranges) -> None:
    """Also if each index has few blocks, and none if the blocks are small."""
    with few_rows():
        memory = MemoryStore()
        ends = await played(memory, history)
        for number, at in enumerate(ends):
            whole = await read(blocks_at(memory, REGION, 0, at))
            some = await read(blocks_at(memory, REGION, 0, at, ranges=ranges))
            assert rows_within(some, ranges) == rows_within(whole, ranges)
            for before in ends[:number]:
                try:
                    whole = await read(blocks_between(memory, REGION, 0, before, at))
                except StateNotRecordedError:
                    continue
                some = await read(blocks_between(memory, REGION, 0, before, at, ranges=ranges))
                assert rows_within(some, ranges) == rows_within(whole, ranges)


@contextmanager
def few_rows():
    """Blocks have few rows, indexes few blocks, and small changes none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "state_block_rows_max", 4)
        patch.setattr(limits, "state_index_blocks_max", 3)
        patch.setattr(limits, "state_indexed_bytes_min", 1_500)
        yield


QUARTERS = [((1 << 62) * quarter, (1 << 62) * (quarter + 1) - 1) for quarter in range(4)]


@pytest.mark.trio
@pytest.mark.parametrize("snapshot", [False, True], ids=["changes", "snapshot"])
async def test_a_reader_of_a_quarter_of_the_hashes_reads_little_more(snapshot) -> None:
    memory = RecordingStore()
    store = await opened_to_read(memory, 1)
    blocks = numbered("keyed", dict.fromkeys(range(300_000), 7))
    at = await store.commit(1, blocks)
    if snapshot:
        await store.snapshot(blocks)
        at = await store.commit(2, numbered("keyed", {1: 1}))
    await store.aclose()
    size = sum(len(block.data) for block in blocks)
    for quarter in QUARTERS:
        memory.streamed = 0
        found = await read(blocks_at(memory, REGION, 0, at, ranges=[quarter]))
        assert sum(len(block.data) for block in found) < 0.3 * size
        assert memory.streamed < 0.4 * size  # with the first reads, up to the index


@pytest.mark.trio
async def test_a_row_at_the_end_of_a_range_is_read() -> None:
    with few_rows():
        memory = MemoryStore()
        *_, at = await played(memory, [("commit", dict.fromkeys(range(40), 1))])
        for block in await read(blocks_at(memory, REGION, 0, at)):
            for one in block.decoded().column(HASH_COLUMN).to_pylist():
                found = await read(blocks_at(memory, REGION, 0, at, ranges=[(one, one)]))
                assert block in found


@pytest.mark.trio
@pytest.mark.parametrize("window", [0, 1, 100])
async def test_a_read_of_a_part_of_a_segment_that_ends_early_is_an_error(window) -> None:
    """Between two records, too: its members have lost bytes that the checkpoint names."""
    memory = MemoryStore()
    (at,) = await written(memory, ["commit"])
    chain = await state_chain(memory, REGION, 0, at)
    (span,) = chain.segments

    def part(end):
        return read_span(memory, DIRECTORY, span, 0, end, window_bytes=window)

    assert [end for batch in await read(part(span.length)) for end, _ in batch][-1] == span.length
    with pytest.raises(LostBytesError):
        await read(part(span.length + 1))
    with pytest.raises(TornRecordError):
        await read(part(span.length - 1))


def changed(data, at, bits):
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


@pytest.mark.trio
@pytest.mark.parametrize("part", ["index", "block"])
async def test_a_flipped_bit_of_an_index_or_of_a_block_is_refused(part) -> None:
    # EVIDENCE-OF: P-2
    with few_rows():
        memory = MemoryStore()
        ends = await played(memory, [("commit", dict.fromkeys(range(40), 1))])
        (segment,) = memory.servers[0].objects[DIRECTORY]
        good = bytes(memory.servers[0].objects[DIRECTORY][segment])
        op = Op.INDEX if part == "index" else Op.STATE_BLOCK
        (begin, end), *_ = [
            (before, end)
            for (before, _), (end, record) in pairwise([(0, None), *RecordDecoder().feed(good)])
            if record.op is op
        ]
        for at in range(begin, end, 7):
            for server in memory.servers:
                server.objects[DIRECTORY][segment][:] = changed(good, at, 1 << at % 8)
            with pytest.raises(CorruptDataError):
                await read(blocks_at(memory, REGION, 0, ends[-1], ranges=[(0, 2**64 - 1)]))


def entries_of(blocks):
    return [BlockEntry.of(block) for block in blocks]


@pytest.mark.parametrize(
    "record",
    [
        block_record(1, "keyed", b"other bytes"),
        block_record(2, "keyed", b"one"),
        block_record(1, "other", b"one"),
        Record(Op.MARK, ints=(1,)),
        Record(Op.STATE_BLOCK, ints=(1,), strings=(b"keyed",)),
    ],
    ids=["bytes", "checkpoint", "table", "op", "strings"],
)
def test_an_intact_block_that_the_index_does_not_state_is_refused(record) -> None:
    # EVIDENCE-OF: P-2
    entries = entries_of([EncodedBlock("keyed", b"one"), EncodedBlock("keyed", b"two")])
    index = StateIndex(encode_index(1, entries), "here", 100)
    good = block_record(1, "keyed", b"one")
    index.check(0, good, entries[0].bytes)
    for wrong, block, end in (
        (record, 0, entries[0].bytes),
        (good, 1, index.ends[2]),
        (good, 0, entries[0].bytes + 1),
    ):
        with pytest.raises(CorruptDataError, match="the block that its index states"):
            index.check(block, wrong, int(end))


@pytest.mark.parametrize("change", ["version", "count", "bytes", "no stream", "ints", "columns"])
def test_an_index_that_does_not_add_up_is_refused(change) -> None:
    # EVIDENCE-OF: P-2
    good = encode_index(1, entries_of([EncodedBlock("keyed", b"one"), EncodedBlock("keyed", b"two")]))
    checkpoint, count, size = good.ints
    (data,) = good.strings
    wrong = {
        "version": Record(Op.INDEX, ints=good.ints, strings=(data.replace(b"dos.index", b"dos.other"),)),
        "count": Record(Op.INDEX, ints=(checkpoint, count + 1, size), strings=good.strings),
        "bytes": Record(Op.INDEX, ints=(checkpoint, count, size + 1), strings=good.strings),
        "no stream": Record(Op.INDEX, ints=good.ints, strings=(b"no stream",)),
        "ints": Record(Op.INDEX, ints=good.ints[:2], strings=good.strings),
        "columns": Record(Op.INDEX, ints=good.ints, strings=(data.replace(b"first", b"other"),)),
    }[change]
    with pytest.raises(CorruptDataError, match="an index of state blocks of layout 1"):
        StateIndex(wrong, "here", 0)
