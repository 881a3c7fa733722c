"""What a commit of the sink decides, as a table, and in every order of write, commit, abort and replay that
Spark may make.
"""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpoint.core.records.staged import (
    BatchContent,
    CommitUnit,
    WriteKind,
    decode_mark,
    encode_mark,
    is_orphan,
    staged_name,
)
from dos_protocol.errors import LocalProtocolError
from spark_integration.core.sink_commits import (
    TABLE,
    BatchOwner,
    BatchPosition,
    CommitDecision,
    RepeatedBatch,
    judge_commit,
)
from spark_integration.errors import BatchPlannedAgainError, OtherCheckpointError, OtherWriterError

QUERY = CommitUnit(WriteKind.STREAM, "11111111-2222-3333-4444-555555555555", 1)
JOB = CommitUnit(WriteKind.JOB, "a" * 32, None)
ANOTHER_QUERY = encode_mark(QUERY._replace(key="another"))
ANOTHER_JOB = encode_mark(JOB._replace(key="b" * 32))


def judged(unit: CommitUnit, last: int, mark: bytes, **how: Any) -> CommitDecision:
    content = how.pop("content", BatchContent())
    return judge_commit(unit, content, last, mark, "shop.in.orders.spark", **how)


def test_the_table_reports_what_becomes_of_every_unit_that_there_can_be() -> None:
    cannot_be = {
        *((kind, BatchOwner.NOBODY, BatchPosition.RECORDED) for kind in WriteKind),  # nothing is recorded
        *(
            (WriteKind.STREAM, owner_of, BatchPosition.ANY)
            for owner_of in (BatchOwner.NOBODY, BatchOwner.OURS)
        ),  # streams are numbered
        *(
            (WriteKind.JOB, BatchOwner.OURS, place) for place in (BatchPosition.NEXT, BatchPosition.BEYOND)
        ),  # a job is one batch
    }
    assert set(product(WriteKind, BatchOwner, BatchPosition)) - TABLE.keys() == cannot_be


@pytest.mark.parametrize(
    ("unit", "last", "mark", "verdict"),
    [
        (QUERY, 0, b"", CommitDecision.APPEND),
        (QUERY, 1, encode_mark(QUERY), CommitDecision.DONE),
        (QUERY._replace(number=2), 1, encode_mark(QUERY), CommitDecision.APPEND),
        (JOB, 0, b"", CommitDecision.APPEND),
        (JOB, 4, ANOTHER_JOB, CommitDecision.APPEND),
        (JOB, 4, encode_mark(JOB), CommitDecision.DONE),
        (JOB._replace(number=5), 4, ANOTHER_JOB, CommitDecision.APPEND),
        (JOB._replace(number=4), 4, ANOTHER_JOB, CommitDecision.DONE),
    ],
)
def test_a_unit_is_recorded_once(unit: CommitUnit, last: int, mark: bytes, verdict: CommitDecision) -> None:
    assert judged(unit, last, mark) is verdict


@pytest.mark.parametrize("unit", [QUERY, QUERY._replace(number=7), JOB, JOB._replace(number=3)])
@pytest.mark.parametrize("mark", [ANOTHER_QUERY, b"", b"line 7", b'{"spark":"cake","key":""}'])
def test_a_producer_of_somebody_else_is_left_alone(unit: CommitUnit, mark: bytes) -> None:
    owner_of = "another program" if decode_mark(mark) is None else "stream another"
    with pytest.raises(
        OtherWriterError, match=f"was written by {owner_of}, but this is {unit.kind} .*producer"
    ):
        judged(unit, 3, mark)


def test_a_checkpoint_that_is_ahead_of_the_store_wrote_elsewhere() -> None:
    with pytest.raises(OtherCheckpointError, match=r"is at micro-batch 4, but .* has none of its micro"):
        judged(QUERY._replace(number=5), 0, b"")
    with pytest.raises(OtherCheckpointError, match="has its micro-batches up to 2"):
        judged(QUERY._replace(number=5), 3, encode_mark(QUERY))
    with pytest.raises(LocalProtocolError, match=r"batch 5 cannot follow batch 3.*option 'batch'"):
        judged(JOB._replace(number=5), 3, ANOTHER_JOB)


def test_a_batch_that_spark_planned_again_is_refused_unless_what_is_recorded_is_to_be_kept() -> None:
    ten = BatchContent(10, 77)
    mark = encode_mark(QUERY, ten)
    assert judged(QUERY, 1, mark, content=ten) is CommitDecision.DONE
    for content, found in ((BatchContent(10, 78), "10 other rows"), (BatchContent(9, 77), "10 rows, .* 9")):
        with pytest.raises(BatchPlannedAgainError, match=rf"micro-batch 0 was planned again.*{found}"):
            judged(QUERY, 1, mark, content=content)
        assert judged(QUERY, 1, mark, content=content, repeated=RepeatedBatch.KEEP) is CommitDecision.DONE
    # Spark begins a micro-batch only after the one before was committed, so it never repeats an older one.
    with pytest.raises(BatchPlannedAgainError, match="micro-batches up to 8 are recorded"):
        judged(QUERY._replace(number=2), 9, mark, content=ten)
    assert judged(QUERY, 9, mark, repeated=RepeatedBatch.KEEP) is CommitDecision.DONE
    assert judged(JOB, 4, encode_mark(JOB, ten)) is CommitDecision.DONE, "a batch write has an id"


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.booleans())
def test_of_a_stream_only_what_is_decided_is_an_orphan(number: int, back: int, recorded: bool) -> None:
    older = QUERY._replace(number=max(number - back, 1))
    now = QUERY._replace(number=number)
    assert is_orphan(staged_name(older, 7, 0), now, recorded=recorded) == (older.number != number or recorded)
    assert not is_orphan(staged_name(now._replace(number=number + 1 + back), 7, 0), now, recorded=recorded)


def test_a_batch_write_leaves_its_own_rows_until_they_are_recorded_and_what_is_not_the_sinks_for_ever() -> (
    None
):
    another = JOB._replace(key="c" * 32)
    assert [is_orphan(staged_name(one, 1, 0), JOB, recorded=False) for one in (JOB, another)] == [False, True]
    assert [is_orphan(staged_name(one, 1, 0), JOB, recorded=True) for one in (JOB, another)] == [True, False]
    for name in ("notes.txt", staged_name(QUERY, 1, 0), "j" + "a" * 32):
        assert not is_orphan(name, JOB, recorded=False)
    assert not is_orphan(staged_name(JOB, 1, 0), QUERY._replace(number=99), recorded=True)


class Spark(RuleBasedStateMachine):
    """A query whose driver dies at any point and leaves a zombie. `checkpoint`: micro-batches whose commit
    returned; a new driver begins behind them. Rows of a micro-batch are cut into partitions anew each time,
    so rows of two attempts must never be mixed: a record is of one attempt.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[bytes, int]] = []
        """The producer's batches: mark, and the attempt whose rows they are."""
        self.checkpoint = 0
        self.attempts: dict[int, int] = {}
        """Attempt -> its number."""
        self.staged: dict[str, int] = {}
        """Object -> attempt."""
        self.epoch = 0

    @rule()
    def write(self) -> None:
        """All tasks of the next micro-batch, of this driver."""
        attempt, number = len(self.attempts), self.checkpoint + 1
        self.attempts[attempt] = number
        self.epoch += 1
        self.sweep(number, recorded=False)
        self.staged[staged_name(QUERY._replace(number=number), self.epoch, 0)] = attempt

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), dies=st.sampled_from(["before", "after", "no"]))
    def commit(self, data: st.DataObject, dies: str) -> None:
        """Of any attempt there was; who commits dies before or after the append, or returns."""
        attempt = data.draw(st.sampled_from(sorted(self.attempts)))
        number = self.attempts[attempt]
        unit = QUERY._replace(number=number)
        last, mark = len(self.records), self.records[-1][0] if self.records else b""
        if number < last:  # the commit of a zombie, or Spark's checkpoint is older: nothing is recorded
            with pytest.raises(BatchPlannedAgainError):
                judged(unit, last, mark)
            return
        verdict = judged(unit, last, mark)
        if verdict is CommitDecision.APPEND:
            if dies == "before":
                return
            assert attempt in self.staged.values(), "its rows were taken away before they were recorded"
            self.records.append((encode_mark(unit), attempt))
        if dies == "no":
            self.sweep(number, recorded=True)
            self.checkpoint = max(self.checkpoint, number)

    @rule()
    def abort(self) -> None:
        """Decides nothing, whenever it comes."""

    def sweep(self, number: int, *, recorded: bool) -> None:
        unit = QUERY._replace(number=number)
        self.staged = {
            name: attempt
            for name, attempt in self.staged.items()
            if not is_orphan(name, unit, recorded=recorded)
        }

    @invariant()
    def every_micro_batch_is_recorded_once(self) -> None:
        assert [self.attempts[attempt] for _, attempt in self.records] == list(
            range(1, len(self.records) + 1)
        )
        assert self.checkpoint <= len(self.records) <= self.checkpoint + 1


TestSparkInAnyOrder = Spark.TestCase
