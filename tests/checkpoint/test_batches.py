"""Batches of a query: what is done with each is judged exhaustively, and random walks of a region, its query
and their troubles keep each row exactly once. Each rule that prevents a loss is left out in turn.
"""

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from unittest import mock

import pytest

from checkpoint import limits
from checkpoint.core.coordination import batches
from checkpoint.core.coordination.batches import (
    Batches,
    Needed,
    Recorded,
    Refused,
    judge,
    refused_before_claim,
)
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.vocabulary import (
    ControlReceived,
    ManifestOpened,
    MessageRefused,
    PauseWanted,
    ResetWanted,
    RestoreWanted,
)
from checkpoint.core.links.messages import (
    BatchAsked,
    BatchNeeded,
    BatchOffered,
    BatchProcessed,
    BatchRefused,
    OpenBatch,
    RequestCheckpoint,
    Restored,
    WantsCheckpoint,
)
from checkpoint.core.progress import status_json
from checkpoint.core.records.lines import recorded_again
from checkpoint.core.records.manifest import BatchNote, check_checkpoint
from checkpoint.core.region import DrivingQuery
from tests.checkpoint.batch_model import LegitRefusalError, ViolationError, walk
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes

true_judge, true_fed, true_answer = judge, Batches.on_fed, Batches._answer

# --- the judgement ----------------------------------------------------------------------------------------


def note(number: int, time_us: int, query: str = "q") -> BatchNote:
    return BatchNote(query=query, number=number, time_us=time_us, rows=1)


def asked(number: int, time_us: int, query: str = "q") -> BatchAsked:
    return BatchAsked(job="region", query=query, number=number, time_us=time_us)


TIMES = {0: 10, 1: 20, 2: 30}
"""When each batch was planned."""


def check_judge() -> None:
    """Try each state with up to three batches, of which the last ones are known, and each question."""
    for last, kept, number, time_us, query in product(
        (None, 0, 1, 2), range(3), range(5), (5, 10, 15, 20, 25, 30, 35), ("q", "other")
    ):
        processed = [] if last is None else [note(n, TIMES[n]) for n in range(last + 1)]
        known = list(reversed(processed[kept:]))
        if last is not None and not known:
            continue
        # A former query, from which the region was released, may have planned a batch at the same time.
        known.append(note(7, 35, "other"))
        verdict = batches.judge(
            "region", processed[-1] if processed else None, known, asked(number, time_us, query)
        )
        of_time = [one for one in known if one.time_us == time_us and one.query == "q"]
        case = last, kept, number, time_us, query, verdict
        if last is None:
            expected: object = Needed if number == 0 else "gap"
        elif query != "q":
            expected = "other query"
        elif of_time:
            expected = of_time[0]
        elif number > last + 1:
            expected = "gap"
        else:
            follows = number == last + 1 and time_us > TIMES[last]
            expected = Needed if follows else "planned again"
        found = verdict.problem if isinstance(verdict, Refused) else type(verdict)
        assert expected == (verdict.note if isinstance(verdict, Recorded) else found), case
        if isinstance(verdict, Refused):
            assert "region 'region'" in verdict.text, case
            assert verdict.remedy, case


def test_each_question_about_a_batch_is_judged_by_its_time_and_then_by_its_number() -> None:
    check_judge()


def test_a_refusal_names_the_batches_and_the_remedy() -> None:
    last, known = note(41, 20), [note(41, 20)]
    gap = judge("wordcount", last, known, asked(51, 30))
    assert isinstance(gap, Refused)
    assert "has processed batch 41, and the query asks for batch 51" in gap.text
    assert "remove the files from 42 on in offsets and commits" in gap.remedy
    again = judge("wordcount", last, known, asked(41, 86_400_031_999))
    assert isinstance(again, Refused)
    assert "planned it again at 00:00:00.031 UTC: its checkpoint lost its newest batches" in again.text
    assert "dos region restore URL wordcount --to checkpoint:N" in again.remedy
    old = judge("wordcount", last, known, asked(41, 19))
    assert isinstance(old, Refused)
    assert "a DataFrame of an earlier batch is evaluated" in old.text
    assert "output of the last two batches, and of those younger than 60 s" in old.remedy
    other = judge("wordcount", last, known, asked(0, 30, "new"))
    assert isinstance(other, Refused)
    assert "driven by query q, and this is query new" in other.text
    assert "dos region release URL wordcount" in other.remedy


# --- one coordinator --------------------------------------------------------------------------------------


class DrivenRegion(CoordinatorHarness):
    """A region of two workers; the test also plays the tasks, whose links are numbered from 1,000 on."""

    def ask(self, link: int, number: int, time_us: int) -> None:
        self.play(ControlReceived(link, asked(number, time_us)))

    def offer(self, link: int, incarnation: int = 0) -> None:
        self.play(
            ControlReceived(
                link,
                BatchOffered(job="region", incarnation=incarnation or self.epoch, attempt=f"a{link}", rows=1),
            )
        )

    def fed(self, worker: int, number: int, **marks: int) -> None:
        self.receive(worker, WantsCheckpoint, step=1, batch=number, marks=marks)

    def answers(self, *kinds: type) -> list:
        """What tasks have received of these kinds: (link, message)."""
        return [(link, message) for link, message in self.sent(*kinds) if link >= 1_000]

    def process(self, number: int, time_us: int, checkpoint: int) -> BatchNote:
        """A whole batch; its task gets the record."""
        self.take()
        self.ask(1_000 + time_us, number, time_us)
        self.offer(1_000 + time_us)
        self.fed(0, number)
        self.fed(1, number)
        self.votes(checkpoint, step=10 * checkpoint)
        record = self.appended()
        assert record.batch is not None
        return record.batch


GRAPH = notes(count="count", at="event_time", other="event_time")


def driven() -> DrivenRegion:
    region = DrivenRegion(trigger="operator", operators=GRAPH)
    region.run()
    return region


def check_offer_of_another_incarnation() -> None:
    region = driven()
    region.ask(1_000, 0, 5)
    assert [link for link, _ in region.answers(BatchNeeded)] == [1_000]
    region.play(ResetWanted())
    region.opened()
    region.receive_from_all(Restored, last_step=0)
    (needed,) = region.answers(BatchNeeded)
    assert needed[1].incarnation == region.epoch == 2
    region.offer(
        1_000, incarnation=1
    )  # it was on its way when the region was reset: no worker has the shares
    assert not region.sent(OpenBatch)
    region.offer(1_000)
    assert len(region.sent(OpenBatch)) == 2


def test_an_offer_that_a_reset_has_overtaken_opens_nothing() -> None:
    check_offer_of_another_incarnation()


def test_the_checkpoint_of_a_batch_follows_the_last_worker_and_takes_the_largest_marks() -> None:
    region = driven()
    region.ask(1_000, 0, 5)
    region.offer(1_000)
    region.take()
    region.fed(0, 0, at=70, other=3)
    region.fed(0, 0, at=90)  # repeated: it does not count for the other worker
    assert not region.sent(RequestCheckpoint)
    region.receive(1, WantsCheckpoint, step=7, batch=0, marks={"at": 60})
    requests = [message for _, message in region.sent(RequestCheckpoint)]
    assert [(one.batch, one.step, one.marks) for one in requests] == [(0, 8, {"at": 70, "other": 3})] * 2
    region.votes(1, step=8)
    first = region.appended().batch
    assert first is not None
    assert (first.number, first.after_step, first.step, first.marks) == (0, 0, 8, {"at": 70, "other": 3})
    (recorded,) = region.answers(BatchProcessed)
    assert recorded[1].batch == first
    region.process(1, 6, 2)
    region.ask(1_050, 2, 7)
    region.offer(1_050)
    opened = [message for _, message in region.sent(OpenBatch)]
    assert opened[-1].marks == {"at": 70, "other": 3}  # rows without a time moved nothing


def test_before_a_claim_the_retained_records_decide_as_the_coordinator_would() -> None:
    region = driven()
    assert refused_before_claim("r", (), asked(0, 5)) is None
    assert refused_before_claim("r", (), asked(1, 5)) is not None
    region.process(0, 5, 1)
    region.process(1, 6, 2)
    kept = region.core.run.kept
    for allowed in (asked(1, 6), asked(2, 7), asked(9, 5)):
        assert refused_before_claim("r", kept, allowed) is None
    for number, time_us, query, problem in [
        (0, 7, "other", "other query"),
        (3, 7, "q", "gap"),
        (1, 7, "q", "planned again"),
    ]:
        refused = refused_before_claim("r", kept, asked(number, time_us, query))
        assert refused is not None
        assert refused.problem == problem


def test_a_task_without_the_time_of_its_batch_is_refused() -> None:
    region = driven()
    region.ask(1_000, 0, 0)
    (refused,) = region.take(MessageRefused)
    assert "batch 0 of query 'q' at 0 us" in refused.refusal.text
    assert not region.answers(BatchNeeded)


def test_the_last_two_batches_and_those_of_the_last_minute_are_known() -> None:
    region = driven()
    processed = [region.process(n, 10 + n, 1 + n) for n in range(limits.checkpoints_retained + 3)]
    known = region.core._batches.known()
    assert {one.number for one in known} == set(range(len(processed)))  # all are younger
    region.ask(2_000, len(processed), processed[0].time_us)  # its DataFrame is evaluated late
    (recorded,) = region.answers(BatchProcessed)[-1:]
    assert recorded[1].batch == processed[0]
    region.now += limits.batch_known_s
    region.ask(2_001, len(processed), processed[0].time_us)
    (refused,) = region.answers(BatchRefused)
    assert "a DataFrame of an earlier batch is evaluated" in refused[1].text
    numbers = {one.number for one in region.core._batches.known()}
    assert numbers == set(range(len(processed) - limits.checkpoints_retained, len(processed)))


def check_batches_of_a_left_line() -> None:
    region = driven()
    times = [region.process(n, 10 + n, 1 + n).time_us for n in range(3)]
    region.take()
    region.play(RestoreWanted("checkpoint:1", allow_republish=True))
    region.appended()
    region.opened(region.core.run.last_checkpoint)
    region.receive_from_all(Restored, last_step=10)
    region.votes(5, step=10)
    region.appended()
    region.ask(3_000, 1, times[1])  # Spark repeats it: its rows are not in the state any more
    assert [type(message) for _, message in region.answers(BatchNeeded, BatchProcessed)] == [BatchNeeded]
    region.ask(3_001, 1, times[0])
    assert [message.batch.number for _, message in region.answers(BatchProcessed)] == [0]


def test_after_a_restore_a_batch_that_was_taken_back_is_needed_again() -> None:
    check_batches_of_a_left_line()


def test_the_status_says_which_query_drives_the_region_and_why_a_batch_waits() -> None:
    region = driven()
    assert region.core.status().query is None
    region.ask(1_000, 0, 5)
    query = region.core.status().query
    assert query == DrivingQuery("q", waits="batch 0 waits: its task sends its rows")
    region.play(PauseWanted(on=True))
    region.offer(1_000)
    assert waits(region) == "batch 0 waits: the region is paused"
    region.play(PauseWanted(on=False))
    assert waits(region) == "batch 0: 2 workers process it"
    region.fed(0, 0)
    assert waits(region) == "batch 0: 1 workers process it"
    region.fed(1, 0)
    assert waits(region) == "batch 0: its checkpoint is under way"
    region.votes(1)
    region.appended()
    assert region.core.status().query == DrivingQuery("q", 0, 5, 1)
    assert json.loads(json.dumps(status_json(region.core.status())))["query"] == {
        "query": "q",
        "lastBatch": 0,
        "plannedMicroseconds": 5,
        "rows": 1,
        "waits": "",
    }
    region.play(ResetWanted())
    region.ask(1_001, 1, 6)
    assert waits(region) == "batch 1 waits: the region is in the phase OPENING"


def waits(region: DrivenRegion) -> str:
    query = region.core.status().query
    assert query is not None
    return query.waits


def test_a_region_that_was_released_begins_with_the_next_query_and_its_output() -> None:
    region = driven()
    region.process(0, 5, 1)
    region.process(1, 6, 2)
    released = recorded_again(region.core.run.kept, 9, {}, released=True)
    check_checkpoint(released, before=region.core.run.last_checkpoint)
    assert released.batch is None
    again = DrivenRegion(operators=GRAPH, trigger="operator")
    again.epoch = 9
    again.play(ManifestOpened(9, released, (*region.core.run.kept, released)))
    for worker in (0, 1):
        again.join(worker)
    again.receive_from_all(Restored, last_step=20)
    again.take()
    again.play(ControlReceived(1_000, asked(2, 7, "new")))
    assert [message.problem for _, message in again.answers(BatchRefused)] == ["gap"]
    again.play(ControlReceived(1_001, asked(0, 6, "new")))
    again.offer(1_001)
    again.fed(0, 0)
    again.fed(1, 0)
    again.votes(4, step=33)
    batch = again.appended().batch
    assert batch is not None
    assert (batch.query, batch.number, batch.after_step, batch.step) == ("new", 0, 20, 33)


# --- walks ------------------------------------------------------------------------------------------------

WALKS = 40


def outcomes(seed: str, walks: int = WALKS) -> Counter:
    found: Counter = Counter()
    for number in range(walks):
        try:
            walk(f"{seed}.{number}")
            found["all batches"] += 1
        except LegitRefusalError as refusal:
            found[str(refusal)] += 1
        except ViolationError as error:
            raise ViolationError(f"walk {seed}.{number}: {error}") from error
    return found


def test_every_row_counts_once_and_every_evaluation_of_a_batch_returns_the_same() -> None:
    assert outcomes("a")["all batches"] > WALKS // 2


# --- planted bugs -----------------------------------------------------------------------------------------

PLANTED: dict[str, tuple[Callable, Callable]] = {}
"""Name -> the patch, and what finds it."""


def planted(finds: Callable) -> Callable:
    def register(function: Callable) -> Callable:
        PLANTED[function.__name__] = function, finds
        return function

    return register


def walks() -> None:
    outcomes("planted", 1_000)


def judged(wrong: Callable) -> object:
    return mock.patch.object(batches, "judge", wrong)


@planted(check_judge)
def a_repeated_batch_is_run_again():
    def wrong(*args):
        verdict = true_judge(*args)
        return Needed() if isinstance(verdict, Recorded) else verdict

    return judged(wrong)


@planted(check_judge)
def a_number_that_was_planned_again_gets_the_recorded_output():
    def wrong(region, last, known, asked):
        same = last is not None and (asked.query, asked.number) == (last.query, last.number)
        return Recorded(last) if same else true_judge(region, last, known, asked)

    return judged(wrong)


@planted(check_judge)
def the_rows_of_an_old_dataframe_are_processed_as_the_next_batch():
    def wrong(region, last, known, asked):
        follows = last is not None and (asked.query, asked.number) == (last.query, last.number + 1)
        return Needed() if follows else true_judge(region, last, known, asked)

    return judged(wrong)


@planted(check_judge)
def a_gap_is_accepted():
    def wrong(*args):
        verdict = true_judge(*args)
        gap = isinstance(verdict, Refused) and verdict.problem == "gap"
        return Needed() if gap else verdict

    return judged(wrong)


@planted(check_judge)
def another_query_is_accepted():
    def wrong(region, last, known, asked):
        return true_judge(region, last and BatchNote(**{**fields(last), "query": asked.query}), known, asked)

    def fields(batch):
        return {name: getattr(batch, name) for name in batch.__struct_fields__}

    return judged(wrong)


@planted(check_batches_of_a_left_line)
def batches_of_a_line_that_was_left_count_as_recorded():
    return mock.patch.object(batches, "taken_back", return_value=None)


@planted(check_offer_of_another_incarnation)
def an_offer_of_another_incarnation_counts():
    def wrong(self, link, message):
        self._tasks[link].offer = message

    return mock.patch.object(Batches, "on_offered", wrong)


@planted(walks)
def one_worker_that_has_fed_its_share_suffices():
    def wrong(self, worker, message, now):
        opened = self._open
        if opened is not None and not opened.marks:
            opened.marks |= {one.index: {} for one in self._run.roster if one is not worker}
        return true_fed(self, worker, message, now)

    return mock.patch.object(Batches, "on_fed", wrong)


@planted(walks)
def the_checkpoint_of_a_batch_may_be_that_of_the_next_step_of_any_worker():
    true = Checkpoints.request_for_batch

    def wrong(self, batch, after_step, now):
        true(self, batch, -1, now)

    return mock.patch.object(Checkpoints, "request_for_batch", wrong)


@planted(walks)
def a_checkpoint_may_be_taken_in_the_middle_of_a_batch():
    true = Checkpoints.can_checkpoint.fget

    def wrong(self):
        held, self._run.batch_open = self._run.batch_open, False
        may = true(self)
        self._run.batch_open = held
        return may

    return mock.patch.object(Checkpoints, "can_checkpoint", property(wrong))


@planted(walks)
def a_batch_is_opened_while_a_checkpoint_is_under_way():
    return mock.patch.object(
        Checkpoints, "may_open_batch", property(lambda self: self._run.batch_open is False)
    )


@planted(walks)
def a_reset_does_not_reach_the_task():
    def wrong(self, link, task):
        if task.needed_in:
            task.needed_in = self._run.incarnation
        return true_answer(self, link, task)

    return mock.patch.object(Batches, "_answer", wrong)


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_that_is_left_out_is_found(name) -> None:
    patch, finds = PLANTED[name]
    with patch(), pytest.raises(AssertionError):
        finds()
