"""What happens to rows that were staged and not recorded: each case, and every order in which drivers,
zombies and sweeps may come.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpoint.core.records.inputs import BatchDecision, judge_batch
from checkpoint.core.records.staged import (
    GARBAGE,
    CommitUnit,
    ProducerFacts,
    StagedState,
    WriteKind,
    encode_mark,
    is_orphan,
    may_sweep,
    parse_staged,
    producers_with_staged,
    staged_name,
    staged_state_of,
    staging_directory,
)
from dos_protocol.names import check_name

QUERY = CommitUnit(WriteKind.STREAM, "11111111-2222-3333-4444-555555555555", 7)
JOB = CommitUnit(WriteKind.JOB, "a" * 32, None)
OTHER_JOB = CommitUnit(WriteKind.JOB, "b" * 32, None)
NOW = 1_000_000


def staged_state(
    unit: CommitUnit,
    *,
    last: int = 0,
    mark: bytes = b"",
    closed: bool = False,
    age: int = 0,
    give_up: int | None = None,
) -> StagedState:
    return staged_state_of(staged_name(unit, 3, NOW - age), ProducerFacts(last, mark, closed), NOW, give_up)


def test_of_a_query_what_is_recorded_goes_and_what_is_newer_stays_until_it_is_given_up() -> None:
    mark = encode_mark(QUERY)
    assert [staged_state(QUERY, last=last, mark=mark) for last in (5, 6, 7, 8)] == [
        StagedState.PENDING,
        StagedState.PENDING,
        StagedState.RECORDED,
        StagedState.RECORDED,
    ]
    assert [staged_state(QUERY, last=6, mark=mark, age=age, give_up=100) for age in (99, 100)] == [
        StagedState.PENDING,
        StagedState.ABANDONED,
    ]
    assert staged_state(QUERY, last=7, mark=mark, age=100, give_up=100) is StagedState.RECORDED


def test_of_a_batch_write_the_producers_last_batch_must_say_that_it_is_this_ones() -> None:
    assert staged_state(JOB, last=4, mark=encode_mark(JOB)) is StagedState.RECORDED
    assert staged_state(JOB, last=4, mark=encode_mark(OTHER_JOB)) is StagedState.PENDING
    assert staged_state(JOB, last=4, mark=b"line 7") is StagedState.PENDING
    assert staged_state(JOB, last=0, mark=encode_mark(JOB)) is StagedState.PENDING
    query_of_that_name = CommitUnit(WriteKind.STREAM, JOB.key, 4)
    assert staged_state(JOB, last=4, mark=encode_mark(query_of_that_name)) is StagedState.PENDING


def test_a_writer_whose_clock_is_ahead_is_not_old() -> None:
    assert staged_state(QUERY, age=-5_000, give_up=100) is StagedState.PENDING
    assert staged_state(QUERY, age=-5_000, give_up=0) is StagedState.PENDING


def test_when_the_handle_is_closed_nothing_waits_any_more_and_what_is_not_the_sinks_stays_for_ever() -> None:
    assert staged_state(QUERY, closed=True) is StagedState.CLOSED
    assert staged_state(JOB, closed=True) is StagedState.CLOSED
    for name in ("notes.txt", "b1.2.3", staged_name(JOB, 1, 0)[:-1], staged_name(JOB, 1, 0) + "0"):
        assert staged_state_of(name, ProducerFacts(9, b"", closed=True), NOW, 0) is StagedState.FOREIGN


def test_a_directory_is_swept_when_there_is_garbage_in_it_and_nothing_undecided() -> None:
    assert may_sweep([StagedState.RECORDED, StagedState.FOREIGN])
    assert may_sweep([StagedState.ABANDONED, StagedState.CLOSED])
    assert not may_sweep([StagedState.RECORDED, StagedState.PENDING])
    assert not may_sweep([StagedState.FOREIGN])
    assert not may_sweep([])


@given(st.integers(1, 1 << 63), st.integers(0, 1 << 63), st.integers(0, (1 << 48) - 1), st.booleans())
def test_a_name_reports_what_it_was_made_of_and_is_one_that_servers_take(
    number: int, epoch: int, since_ms: int, is_job: bool
) -> None:
    unit = JOB if is_job else QUERY._replace(number=number)
    name = check_name(staged_name(unit, epoch, since_ms))
    assert parse_staged(name) == (None if is_job else number, JOB.key if is_job else "", since_ms)


def test_directories_are_found_by_producer_and_those_of_other_handles_are_left_out() -> None:
    mine = [staging_directory("shop.eu", "orders", one, at) for one in ("spark", "q1") for at in (0, 12_345)]
    others = [
        staging_directory("shop.eu", "orders2", "spark", 0),
        staging_directory("shop", "eu", "spark", 0),
        "shop.eu.sink.orders.spark",
        "shop.eu.sink.orders.a.b.p0000",
        "shop.eu.in.orders.spark",
    ]
    assert producers_with_staged(mine + others, "shop.eu", "orders") == {"q1": mine[2:], "spark": mine[:2]}


class Attempt:
    """A driver's try of one micro-batch: its tasks' objects by directory, and its commit under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.objects: dict[int, str] = {}
        self.failed = False
        self.producer_epoch: int | None = None
        self.unread: list[int] = []


class Producer(RuleBasedStateMachine):
    """A query over two partitions, drivers that die and come back as zombies, and sweeps, with and without an
    age, at any moment. A commit is: become the producer; judge; read each object; append. Any of them may be
    the last that a driver does, and any other party may come between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: list[int] = []
        self.epoch = 0
        """Of the producer's directory."""
        self.claims = [0, 0]
        """Of the directories of the partitions."""
        self.there: list[dict[str, int]] = [{}, {}]
        """Name -> the epoch that it is written under."""
        self.attempts: list[Attempt] = []
        self.checkpoint = 0
        self.given_up: set[str] = set()
        self.now = 0

    # drivers and tasks

    @rule()
    def begin(self) -> None:
        """A driver, the first or one after its death, runs the micro-batch behind its checkpoint."""
        self.attempts.append(Attempt(self.checkpoint + 1))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), partition=st.integers(0, 1))
    def put_down(self, data: st.DataObject, partition: int) -> None:
        """A task; of a zombie too. It claims, which fences the one that was there."""
        attempt = data.draw(st.sampled_from(self.attempts))
        if partition in attempt.objects:
            return
        self.claims[partition] += 1
        self.now += 1
        name = staged_name(
            CommitUnit(WriteKind.STREAM, "q", attempt.number), self.claims[partition], self.now
        )
        self.there[partition][name] = self.claims[partition]
        attempt.objects[partition] = name

    def ready(self) -> list[Attempt]:
        return [one for one in self.attempts if len(one.objects) == 2 and not one.failed]

    @precondition(lambda self: self.ready())
    @rule(data=st.data())
    def become_the_producer(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.ready()))
        self.epoch += 1
        if judge_batch(attempt.number, len(self.records)) is BatchDecision.DISCARD:
            self.committed(attempt)
            return
        attempt.producer_epoch = self.epoch
        attempt.unread = [0, 1]

    def reading(self) -> list[Attempt]:
        return [one for one in self.ready() if one.producer_epoch is not None]

    @precondition(lambda self: self.reading())
    @rule(data=st.data())
    def read_what_was_put_down(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.reading()))
        if not attempt.unread:
            return
        partition = attempt.unread.pop()
        name = attempt.objects[partition]
        if name not in self.there[partition]:
            attempt.failed = True  # StagedRowsGoneError: nothing is recorded, the micro-batch begins anew
            decided = attempt.number <= len(self.records)  # by another, which has fenced this one
            assert name in self.given_up or decided, "taken away from a writer that might record it"

    @precondition(lambda self: self.reading())
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.reading()))
        if attempt.unread or attempt.producer_epoch != self.epoch:
            return  # fenced
        self.records.append(attempt.number)
        self.committed(attempt)

    def committed(self, attempt: Attempt) -> None:
        attempt.producer_epoch = None
        self.checkpoint = max(self.checkpoint, attempt.number)

    # the operator

    @rule(partition=st.integers(0, 1), stale=st.integers(0, 2))
    def sweep(self, partition: int, stale: int) -> None:
        """Without an age; what is recorded was looked at some batches ago."""
        last = max(len(self.records) - stale, 0)
        self.sweep_partition(partition, ProducerFacts(last, b"", closed=False), None)

    @rule(partition=st.integers(0, 1), age=st.integers(0, 5), fences=st.booleans())
    def sweep_with_an_age(self, partition: int, age: int, fences: bool) -> None:
        """fences False: the producer was opened again between."""
        if fences:
            self.epoch += 1
        decided = ProducerFacts(len(self.records), b"", closed=False)
        self.sweep_partition(partition, decided, age)

    def sweep_partition(self, partition: int, decided: ProducerFacts, give_up: int | None) -> None:
        staged_states = {
            name: staged_state_of(name, decided, self.now, give_up) for name in self.there[partition]
        }
        if not may_sweep(staged_states.values()):
            return
        self.claims[partition] += 1
        for name in [name for name, one in staged_states.items() if one in GARBAGE]:
            del self.there[partition][name]
            if staged_states[name] is StagedState.ABANDONED:
                self.given_up.add(name)

    # what must be true

    @invariant()
    def every_micro_batch_is_recorded_once_and_in_order(self) -> None:
        assert self.records == list(range(1, len(self.records) + 1))
        assert self.checkpoint <= len(self.records) <= self.checkpoint + 1

    def teardown(self) -> None:
        """All die and none returns: after everything is given up, nothing is left."""
        for partition in (0, 1):
            self.sweep_partition(partition, ProducerFacts(len(self.records), b"", closed=False), 0)
        assert self.there == [{}, {}]


TestAProducerAndItsSweepsInAnyOrder = Producer.TestCase


@pytest.mark.parametrize("closed", [False, True])
def test_nothing_is_taken_from_a_directory_where_a_task_may_be_at_work_unless_the_handle_is_closed(
    closed: bool,
) -> None:
    decided = ProducerFacts(7, encode_mark(QUERY), closed)
    names = [staged_name(QUERY._replace(number=number), 1, 0) for number in (7, 8)]
    assert may_sweep([staged_state_of(name, decided, NOW, None) for name in names]) is closed


STREAM = WriteKind.STREAM


@pytest.mark.parametrize(("number", "recorded", "orphan"), [
    (6, False, True), (7, False, False), (8, False, False),
    (6, True, True), (7, True, True), (8, True, False),
])  # fmt: skip
def test_of_a_stream_what_is_older_is_left_over(number: int, recorded: bool, orphan: bool) -> None:
    name = staged_name(CommitUnit(STREAM, "q", number), 1, 1)
    assert is_orphan(name, CommitUnit(STREAM, "q", 7), recorded=recorded) is orphan
    job = CommitUnit(WriteKind.JOB, "a" * 32, None)
    assert not is_orphan(name, job, recorded=recorded), "of a stream nothing is a job's to take"
    assert not is_orphan("nonsense", job, recorded=recorded)


def test_of_a_job_what_others_staged_is_left_over_until_it_is_recorded_and_its_own_then() -> None:
    job, other = CommitUnit(WriteKind.JOB, "a" * 32, None), CommitUnit(WriteKind.JOB, "b" * 32, None)
    own, strange = staged_name(job, 1, 1), staged_name(other, 1, 1)
    assert [is_orphan(name, job, recorded=False) for name in (own, strange)] == [False, True]
    assert [is_orphan(name, job, recorded=True) for name in (own, strange)] == [True, False]
    assert not is_orphan(own, CommitUnit(STREAM, "q", 7), recorded=True)
