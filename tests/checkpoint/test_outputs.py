"""Output by step: what is discarded, compared, appended, refused; what a log has after it was opened again.

The rules are those of distributed-dbsp, "Output".
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.output_log import OutputLog
from checkpoint.core.records.outputs import (
    Output,
    OutputDecision,
    OutputHead,
    OutputSequence,
    Publish,
    decode_output,
    encode_output,
    output_chain,
)
from checkpoint.errors import OutputDiffersError
from dos_protocol.errors import ClosedError, CorruptDataError, FencedError, LocalProtocolError
from journal import ORIGIN, Op, Position, inspect_chain, read_records, take_over
from tests.journal.memory_store import DIRECTORY, MemoryStore


def at(step: int) -> Position:
    return Position(1, step, step)


def test_an_older_step_is_discarded_a_known_one_compared_the_next_appended_a_later_one_refused() -> None:
    line = OutputSequence("out", after=3)
    assert line.judge(2, 77) is OutputDecision.DISCARD, (
        "below the checkpoint: nobody knows any more what it was"
    )
    assert line.judge(4, 44) is OutputDecision.APPEND
    line.add(4, 44, at(4))
    line.add(5, 55, at(5))
    assert (line.last, line.end_of(4), line.end_of(9)) == (5, at(4), None)
    assert line.judge(4, 44) is OutputDecision.DISCARD
    with pytest.raises(
        OutputDiffersError, match="sink 'out': step 5 was published with digest 0000000000000037"
    ):
        line.judge(5, 56)
    assert line.judge(6, 1) is OutputDecision.APPEND
    with pytest.raises(LocalProtocolError, match="output of step 7 cannot follow step 5"):
        line.judge(7, 1)
    with pytest.raises(LocalProtocolError, match="output of step 7 cannot follow step 5"):
        line.add(7, 1, at(7))
    line.forget(4)
    assert (line.end_of(4), line.end_of(5)) == (None, at(5))
    assert line.judge(4, 1) is OutputDecision.DISCARD


@given(st.integers(0, 5), st.integers(0, 9), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2))))
def test_a_line_is_a_list_of_steps(after: int, there: int, made: list[tuple[int, int]]) -> None:
    line = OutputSequence("out", after)
    model: dict[int, int] = {}
    for step in range(1, there + 1):  # a log read back from its beginning
        line.add(step, 1, at(step))
        if step > after:
            model[step] = 1
    for step, digest in made:
        last = max([after, *model])
        try:
            verdict = line.judge(step, digest)
        except OutputDiffersError:
            assert model[step] != digest
        except LocalProtocolError:
            assert step > last + 1
        else:
            assert verdict is (OutputDecision.APPEND if step == last + 1 else OutputDecision.DISCARD)
            assert model.get(step, digest) == digest or step <= after
            if verdict is OutputDecision.APPEND:
                line.add(step, digest, at(step))
                model[step] = digest
    assert line.last == max([after, *model])


outputs = st.builds(
    Output,
    step=st.integers(0, 2**63),
    time_ms=st.integers(0, 2**63),
    rows=st.integers(1, 2**40),
    digest=st.integers(0, 2**64 - 1),
    head=st.builds(
        OutputHead,
        sink=st.text(max_size=9),
        publish=st.sampled_from(Publish),
        inputs=st.dictionaries(
            st.text(max_size=5),
            st.dictionaries(st.text(max_size=5), st.integers(0, 2**62), max_size=2),
            max_size=2,
        ),
        workers=st.integers(1, 2**16),
    ),
    data=st.binary(min_size=1, max_size=99),
)


@given(outputs)
def test_an_output_returns_from_its_record(output: Output) -> None:
    record = encode_output(output)
    assert decode_output(record.ints, record.strings, where="c", at=9) == output


@pytest.mark.parametrize(
    ("ints", "strings", "found"),
    [
        ((1, 2, 3), (b"{}", b""), "3 ints and 2 strings"),
        ((1, 2, 0, 4), (b"{}",), "4 ints and 1 strings"),
        ((1, 2, 0, 4), (b'{"sink":"s"}', b""), "missing required field"),
        ((1, 2, 0, 4), (b'{"sink":"s","publish":"never"}', b""), "Invalid enum value"),
        ((1, 2, 0, 4), (b"[" * 5000, b""), "the JSON head of an output"),
        ((1, 2, 0, 4), (b'{"sink":"s","publish":"checkpoint"}', b""), "missing required field `workers`"),
        ((1, 2, 3, 4), (b'{"sink":"s","publish":"checkpoint","workers":1}', b""), "3 rows"),
        ((1, 2, 0, 4), (b'{"sink":"s","publish":"checkpoint","workers":1}', b"x"), "0 rows"),
    ],
)
def test_a_record_that_cannot_be_an_output_is_corrupt(
    ints: tuple[int, ...], strings: tuple[bytes, ...], found: str
) -> None:
    with pytest.raises(CorruptDataError, match=found):
        decode_output(ints, strings, where="out-x", at=1)


async def opened(
    store: MemoryStore, epoch: int, publish: Publish, after_step: int = 0, end: Position | None = None
) -> OutputLog:
    return await OutputLog.open(
        store.claim(epoch), "x", publish, after_step=after_step, at=end, generation=1, workers=1
    )


async def fill(log: OutputLog, *steps: int, digest: int = 0) -> None:
    for step in steps:
        assert log.judge(step, digest or step) is OutputDecision.APPEND
        await log.append("x", step, 1, digest or step, b"data %d" % step, {"in": {"split": step}})


async def with_three_steps(store: MemoryStore, publish: Publish) -> tuple[OutputLog, Position]:
    """A log with the synced steps 1 to 3, and its position after step 2."""
    log = await opened(store, 1, publish)
    await fill(log, 1, 2, 3)
    after_step_2 = await log.synced(2)
    await log.synced(3)
    return log, after_step_2


async def steps_in(store: MemoryStore) -> list[int]:
    chain = await inspect_chain(store, DIRECTORY, output_chain("x"))
    found = [record async for _, record in read_records(store, chain, directory=DIRECTORY)]
    return [record.ints[0] for record in found if record.op is Op.OUTPUT]


@pytest.mark.trio
async def test_a_log_published_by_step_is_continued_with_at_its_head_and_never_goes_back() -> None:
    # EVIDENCE-OF: P-7
    store = MemoryStore()
    log, in_checkpoint = await with_three_steps(store, Publish.STEP)
    await fill(log, 4)
    await log.synced(4)
    again = await opened(store, 2, Publish.STEP, after_step=2, end=in_checkpoint)
    assert again.last_step == 4
    assert again.judge(3, 3) is OutputDecision.DISCARD
    with pytest.raises(OutputDiffersError):
        again.judge(4, 5)
    assert again.judge(4, 4) is OutputDecision.DISCARD
    old = await again.synced(4)
    assert old.epoch == 1, "it was there, synced, when the log was opened"
    await fill(again, 5)
    assert (await again.synced(5)).epoch == 2
    assert await steps_in(store) == [1, 2, 3, 4, 5]
    await fill(log, 5)
    with pytest.raises(FencedError):
        await log.synced(5)


@pytest.mark.trio
async def test_a_log_shown_by_checkpoint_goes_back_to_the_checkpoint_and_compares_nothing() -> None:
    store = MemoryStore()
    _, in_checkpoint = await with_three_steps(store, Publish.CHECKPOINT)
    again = await opened(store, 2, Publish.CHECKPOINT, after_step=2, end=in_checkpoint)
    assert again.last_step == 2
    await fill(again, 3, digest=99)
    end = await again.synced(3)
    assert end.epoch == 2
    assert await steps_in(store) == [1, 2, 3]
    fresh = await opened(store, 3, Publish.CHECKPOINT)
    await fill(fresh, 1)
    await fresh.synced(1)
    assert await steps_in(store) == [1], "a region that begins again begins its output again"
    chain = await take_over(store.claim(4), output_chain("x"), at=ORIGIN, generation=1)
    assert chain.segments == ()


@pytest.mark.trio
async def test_a_step_that_is_not_in_the_log_has_no_place_in_a_checkpoint() -> None:
    log = await opened(MemoryStore(), 1, Publish.STEP)
    await fill(log, 1)
    with pytest.raises(LocalProtocolError, match="the output of step 2 is not known; the last is 1"):
        await log.synced(2)
    await log.aclose()
    with pytest.raises(ClosedError):
        await fill(log, 2)


@pytest.mark.trio
@pytest.mark.parametrize("publish", [Publish.STEP, Publish.CHECKPOINT])
async def test_a_log_is_opened_at_its_checkpoint_however_many_segments_it_has(publish: Publish) -> None:
    store, end, settled, read = MemoryStore(), None, [], []
    for step in range(1, 41):
        claim = store.claim(step)
        log = await OutputLog.open(claim, "x", publish, after_step=step - 1, at=end, generation=1, workers=1)
        settled.append(len(claim.settled))
        read.append(log.replayed_bytes)
        await fill(log, step)
        end = await log.synced(step)
        await log.aclose()
    assert await steps_in(store) == list(range(1, 41))
    assert max(settled) == 1
    assert max(read) < 1_000, "nothing before the segment of the checkpoint is read"
