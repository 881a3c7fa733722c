"""Which output is taken back by restores, and what readers return meanwhile: pure, and on histories of a
region that is restored at random, also if another region reads its output.
"""

import math
import random
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from checkpoint import limits
from checkpoint.chains import output_reading, visible_log
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import OnRewind, OutputFollower, PublishedOutput
from checkpoint.chains.visible_log import VisibleLog
from checkpoint.core.records.lines import parting, recorded_again, restored, taken_back
from checkpoint.core.records.manifest import Checkpoint, SplitPosition, check_checkpoint
from checkpoint.core.records.outputs import Publish, output_chain
from checkpoint.errors import InputTrimmedError, OutputRewoundError
from dataflow import outputs
from dataflow.outputs import StepRows, read_output
from dos_protocol.errors import DosError
from journal import Position
from tests.checkpoint.manifest_samples import notes, numbered_checkpoint, worker_checkpoint
from tests.checkpoint.restored_output_model import REGION, SINK, WORKERS, RestoredOutputModel
from tests.support.planted_source import is_found, planted

SEEDS = 16
ACTIONS = 80


def checkpoint_at(number: int, step: int, **fields: Any) -> Checkpoint:
    at = msgspec.to_builtins(Position(1, 10 * step, 0))
    part = worker_checkpoint(1, sinks={SINK: at}, floors={f"out-{SINK}": (1, 0)})
    return numbered_checkpoint(number, step=step, workers={0: part}, incarnation=1, **fields)


@given(st.data())
def test_what_was_taken_back_follows_from_the_steps_of_each_line(data: st.DataObject) -> None:
    """Restores go to any checkpoint, also to those of a line that was left."""
    histories: dict[int, list[int]] = {0: []}
    kept: list[Checkpoint] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if kept and data.draw(st.booleans()):
            target = data.draw(st.sampled_from(kept))
            record = restored(kept, target, 1)
            histories[record.line] = histories[target.line][: target.step]
        else:
            last = kept[-1] if kept else None
            line, number = (last.line, last.number + 1) if last else (0, 1)
            step = (last.step if last else 0) + data.draw(st.integers(0, 3))
            histories[line] += [line] * (step - len(histories[line]))
            rewinds, retained = last.rewinds if last else (), tuple(range(1, number + 1))
            record = checkpoint_at(number, step, line=line, rewinds=rewinds, retained=retained)
        check_checkpoint(record, before=kept[-1] if kept else None)
        kept.append(record)
    present = histories[kept[-1].line]
    for line, steps in histories.items():
        parted = parting(kept[-1], line)
        for step in range(len(steps) + 1):
            rewind = taken_back(kept[-1], line, step)
            assert (rewind is None) == (steps[:step] == present[:step])
            if rewind is not None:
                assert rewind == parted
                assert steps[: rewind.step] == present[: rewind.step], "what is before it is valid"
                assert line < rewind.line <= kept[-1].line
                assert rewind.outputs == {0: {SINK: 10 * rewind.step}}


def test_of_lines_that_are_no_longer_known_everything_counts_as_taken_back() -> None:
    kept = [checkpoint_at(1, 5, retained=(1,))]
    for _ in range(limits.rewinds_kept_max + 1):
        kept.append(restored(kept, kept[-1], 1))
    assert len(kept[-1].rewinds) == limits.rewinds_kept_max
    assert taken_back(kept[-1], kept[-1].line - 1, 5) is None
    forgotten = taken_back(kept[-1], 0, 1)
    assert forgotten is not None
    assert (forgotten.step, forgotten.to) == (0, 0)
    with pytest.raises(OutputRewoundError, match="more than 16 times since") as refused:
        outputs._refuse_taken_back(kept[-1], "counts", SINK, 3, 0)
    assert "from its beginning as a new reader" in refused.value.remedy


CHANGES = ("", "removed", "scaled")
"""What changes beside restores: nothing, the sink, or the workers."""


def changed(publish: Publish, rng: random.Random, changes: str) -> RestoredOutputModel:
    return RestoredOutputModel(publish, rng, removes=changes == "removed", scales=changes == "scaled")


# --- readers --------------------------------------------------------------------------------------------


class OutputReader:
    """A client that reads with `read_output` again and again, and honors its errors."""

    def __init__(self, model: RestoredOutputModel, *, checks: bool = True) -> None:
        self.model, self.checks = model, checks
        self.read: list[list[str]] = []
        self.line = 0
        self.notices = 0

    async def poll(self, steps_max: int = 1_000) -> None:
        line = self.line if self.checks else None
        steps = read_output(self.model.store, REGION, SINK, after_step=len(self.read), line=line)  # type: ignore[arg-type]
        try:
            async with aclosing(steps) as found:
                async for step in found:
                    self._take(step)
                    steps_max -= 1
                    if not steps_max:
                        break
        except outputs.NoOutputError:
            assert not self.read
        except OutputRewoundError as error:
            self._discard(error)
        line_now = self.model.rows(self.line)
        assert self.read == line_now[: len(self.read)], "a mix of lines, or steps that the line does not have"

    def _discard(self, error: OutputRewoundError) -> None:
        assert error.step <= len(self.read)
        assert error.line > self.line
        assert not error.checkpoint or f"after_step={error.step - 1}, line=" in error.remedy
        del self.read[error.step - 1 :]
        self.line = error.line
        self.notices += 1

    def _take(self, step: StepRows) -> None:
        assert step.step == len(self.read) + 1
        assert step.table is not None
        self.read.append(step.table.column("row").to_pylist())
        self.line = step.line


async def play(publish: Publish, rng: random.Random, changes: str = "") -> int:
    model = changed(publish, rng, changes)
    await model.open()
    readers = [OutputReader(model), OutputReader(model)]
    for _ in range(ACTIONS):
        if rng.random() < 0.7:
            await model.happen()
            continue
        reader, steps = rng.choice(readers), rng.choice([2, 1_000])
        await model.is_read(partial(reader.poll, steps))
    await model.settle()
    for reader in readers:
        for _ in range(3):
            await reader.poll()
        assert reader.read == model.rows(model.line), "everything of the present line is read"
    return sum(reader.notices for reader in readers)


@pytest.mark.parametrize("changes", CHANGES, ids=["stays", "removed", "scaled"])
@pytest.mark.parametrize("publish", list(Publish))
def test_readers_of_a_region_that_is_restored_at_random_never_return_a_mix(
    publish: Publish, changes: str
) -> None:
    notices = sum(trio.run(play, publish, random.Random(seed), changes) for seed in range(SEEDS))
    assert notices >= SEEDS / 2, "readers were there when output was taken back"


def reads_what_the_log_holds(patch: pytest.MonkeyPatch) -> None:
    """A log is read to its head, whatever line that is of."""
    patch.setattr(VisibleLog, "counts", lambda *_: True)


def does_not_compare_lines(patch: pytest.MonkeyPatch) -> None:
    """What was read is taken for valid."""
    patch.setattr(outputs, "taken_back", lambda *_: None)


def restores_follow_the_line_before(patch: pytest.MonkeyPatch) -> None:
    """A restore to a checkpoint of a line that was left counts as one of the line before."""

    def linear(checkpoint: Checkpoint, line: int, step: int) -> Any:
        later = [rewind for rewind in checkpoint.rewinds if rewind.line > line]
        furthest = min(later, key=lambda rewind: rewind.step, default=None)
        return furthest if furthest is not None and furthest.step < step else None

    patch.setattr(outputs, "taken_back", linear)


def begins_at_a_checkpoint_of_a_line_that_was_left(patch: pytest.MonkeyPatch) -> None:
    """Where lines part at its step, its positions are taken for those of the present line."""
    bug = planted(outputs, "checkpoint.step < parted.step", "checkpoint.step <= parted.step")
    patch.setattr(outputs, "_begin", bug["_begin"])


@pytest.mark.parametrize(
    "bug",
    [
        reads_what_the_log_holds,
        does_not_compare_lines,
        restores_follow_the_line_before,
        begins_at_a_checkpoint_of_a_line_that_was_left,
    ],
)
def test_the_random_restores_find_planted_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    seeds = range(4 * SEEDS)
    runs = (partial(trio.run, play, publish, random.Random(seed)) for seed in seeds for publish in Publish)
    assert is_found(runs, AssertionError, DosError)


# --- a region that reads the output of another one --------------------------------------------------------


FOLLOWED_SEEDS = 12
FOLLOWED_ACTIONS = 120


class LogReader:
    """Reads the log of one worker, as a source does. `rows`: step -> its row; `at`: the position after it."""

    def __init__(self, model: RestoredOutputModel, worker: int, on_rewind: OnRewind) -> None:
        self.model, self.worker = model, worker
        self.published = PublishedOutput(model.store, REGION, SINK, on_rewind=on_rewind)  # type: ignore[arg-type]
        self.rows: dict[int, str] = {}
        self.at: dict[int, SplitPosition] = {0: SplitPosition(0)}
        self.notices = 0
        self.follower = self._at(0)

    def _at(self, step: int) -> OutputFollower:
        return self.published.follower(f"w{self.worker:04d}", self.at[step])

    async def poll(self, *, fresh: bool, pieces_max: int = 1_000) -> None:
        if fresh:
            self.published._polled_at = -math.inf
        try:
            async with aclosing(self.follower.poll()) as pieces:
                async for piece in pieces:
                    self._keep(piece.digest - 1)
                    with pa.ipc.open_stream(piece.data) as reader:
                        (self.rows[piece.digest],) = reader.read_all()["row"].to_pylist()
                    self.at[piece.digest] = SplitPosition(
                        piece.end, piece.digest, line=piece.line, epoch=piece.epoch
                    )
                    pieces_max -= 1
                    if not pieces_max:
                        break
        except OutputRewoundError as error:
            if "deleted" in str(error):
                raise AssertionError("the region was restored and scaled, and never deleted") from error
            if self.published.on_rewind == "follow" and error.checkpoint:
                raise AssertionError("it is known where to continue") from error
            self._keep(error.step - 1)
            self.follower = self._at(max(self.at))  # as after a restore to a checkpoint from before
        if pieces_max == 0:  # the iteration was not ended: a source does so only when it ends
            self.follower = self._at(max(self.at))
        self._keep(self.follower._step)
        line_now = self.model.rows_by(self.worker, self.follower._line)
        read = sorted(self.rows.items())
        assert read == list(line_now.items())[: len(read)], "a mix of two lines"

    def _keep(self, last: int) -> None:
        """Forget what was taken back, or is read again."""
        if max(self.rows, default=0) > last:
            self.notices += 1
        self.rows = {step: row for step, row in self.rows.items() if step <= last}
        self.at = {step: at for step, at in self.at.items() if step <= last}


def lives(publish: Publish, on_rewind: OnRewind, seed: int, changes: str = "") -> int:
    """Every other region states only its last two restores: of older lines a reader knows nothing. Every
    third one has short segments.
    """
    with pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(limits, "rewinds_kept_max", 2)
        if seed % 3 == 0:  # each segment has one or two outputs
            patch.setattr(limits, "output_segment_bytes_max", 700)
        return trio.run(play_followed, publish, on_rewind, random.Random(seed), changes, clock=MockClock())


async def play_followed(publish: Publish, on_rewind: OnRewind, rng: random.Random, changes: str) -> int:
    model = changed(publish, rng, changes)
    await model.open()
    readers = [LogReader(model, worker, on_rewind) for worker in WORKERS]
    for _ in range(FOLLOWED_ACTIONS):
        if rng.random() < 0.7:
            await model.happen()
            continue
        reader, fresh, most = rng.choice(readers), rng.random() < 0.5, rng.choice([2, 1_000])
        await model.is_read(partial(reader.poll, fresh=fresh, pieces_max=most))
    await model.settle()
    for reader in readers:
        for _ in range(4):
            await reader.poll(fresh=True)
        ends = await reader.published.ends()
        if model.is_removed:  # and the reader knows that nothing follows
            assert ends is not None
            assert reader.follower.seen >= ends[reader.follower._split]
        else:
            assert ends is None
        assert reader.rows == model.rows_by(reader.worker, model.line)
    return sum(reader.notices for reader in readers)


@pytest.mark.parametrize("changes", CHANGES, ids=["stays", "removed", "scaled"])
@pytest.mark.parametrize("on_rewind", ["fail", "follow"])
@pytest.mark.parametrize("publish", list(Publish))
def test_a_follower_of_a_region_that_is_restored_at_random_never_has_a_mix(
    publish: Publish, on_rewind: OnRewind, changes: str
) -> None:
    notices = sum(lives(publish, on_rewind, seed, changes) for seed in range(FOLLOWED_SEEDS))
    assert notices >= FOLLOWED_SEEDS / 2, "followers were there when output was taken back"


async def begin_of(model: RestoredOutputModel) -> None:
    """The second worker opens its log, and its process ends before its first record is stored."""

    async def ends(*_: object) -> None:
        """The record is never sent."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputLog, "begin_after", ends)
        await model.open_worker(1)


@pytest.mark.parametrize("on_rewind", ["fail", "follow"])
@pytest.mark.parametrize("known", ["last", "older"])
@pytest.mark.parametrize("ends_at", ["start", "record"])
def test_a_log_that_a_joining_worker_opens_again_was_not_deleted(
    ends_at: str, known: str, on_rewind: OnRewind
) -> None:
    """Its process is killed after the start of its segment, or after its first record. known: the checkpoint
    that the reader knows; in the older one the worker has not left yet.
    """

    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1), scales=True)
        model.layout = WORKERS
        await model.open()
        await model.settle()
        reader = LogReader(model, 1, on_rewind)
        await model.scale()
        await reader.poll(fresh=True)
        await model.settle()
        await model.scale()
        assert (model.layout, model.begins) == (WORKERS, True)
        read = len(reader.rows)
        for attempt in range(2):
            await (begin_of(model) if ends_at == "start" and not attempt else model.open_worker(1))
            await reader.poll(fresh=known == "last")
            assert len(reader.rows) == read, "no step ran"
            await model.open(model.layout)
        await model.settle()
        for _ in range(2):
            await reader.poll(fresh=True)
        assert reader.rows == model.rows_by(1, model.line)
        assert len(reader.rows) > read

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("on_rewind", ["fail", "follow"])
def test_a_log_is_read_from_its_beginning_after_a_restore_to_before_its_worker_joined(
    on_rewind: OnRewind,
) -> None:
    """Nothing was taken back: no step ran since the worker joined. But its log begins again."""

    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1), scales=True)
        model.layout = WORKERS[:1]
        await model.open()
        await model.settle()
        reader = LogReader(model, 1, on_rewind)
        await model.scale()
        for worker in WORKERS:
            await model.open_worker(worker)
        before, joined = model.kept[-2:]
        assert (1 in before.workers, 1 in joined.workers, before.step) == (False, True, joined.step)
        await reader.poll(fresh=True)
        assert reader.follower.seen, "it knows that the worker joined"
        await model.restore(before)
        await model.settle()
        await model.scale()
        await model.open_worker(1)
        await reader.poll(fresh=True)
        await model.settle()
        for _ in range(2):
            await reader.poll(fresh=True)
        assert reader.rows == model.rows_by(1, model.line)
        assert reader.rows

    trio.run(main, clock=MockClock(autojump_threshold=0))


def lines_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output_reading, "taken_back", lambda *_: None)


def records_of_any_line_count(patch: pytest.MonkeyPatch) -> None:
    async def belongs(*_: object) -> bool:
        return True

    patch.setattr(OutputFollower, "_belongs", belongs)


def what_is_covered_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    waits = planted(output_reading, "proved.counts(end, of_line)", "False")["OutputFollower"]
    patch.setattr(OutputFollower, "_belongs", waits._belongs)


@pytest.mark.parametrize(
    "bug", [lines_are_not_compared, records_of_any_line_count, what_is_covered_is_waited_for]
)
def test_random_restores_find_planted_bugs_of_followers(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    seeds = range(4 * FOLLOWED_SEEDS)
    runs = (partial(lives, publish, "follow", seed) for seed in seeds for publish in Publish)
    assert is_found(runs, AssertionError, DosError)


def a_removed_log_has_no_end(patch: pytest.MonkeyPatch) -> None:
    """The reader knows up to where it is visible, and not that nothing follows."""
    bug = planted(output_reading, " or self.uid in checkpoint.ended)", ")")["PublishedOutput"]
    patch.setattr(PublishedOutput, "ends", bug.ends)


def the_last_checkpoint_has_present_sinks_alone(patch: pytest.MonkeyPatch) -> None:
    """The ends of removed logs are not looked up."""
    bug = planted(visible_log, "if (ended := checkpoint.ended.get(sink)) is not None:", "if False:")
    patch.setattr(visible_log, "covered_in", bug["covered_in"])
    patch.setattr(Checkpoint, "outputs", lambda self: {**self.retired, **self.workers})


@pytest.mark.parametrize(
    "bug",
    [
        a_removed_log_has_no_end,
        the_last_checkpoint_has_present_sinks_alone,
    ],
)
def test_random_removals_find_planted_bugs_of_followers(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    seeds = range(4 * FOLLOWED_SEEDS)
    runs = (partial(lives, publish, "follow", seed, "removed") for seed in seeds for publish in Publish)
    assert is_found(runs, AssertionError, DosError)


def test_a_dropped_log_ends_for_who_has_read_it_and_is_gone_for_any_other() -> None:
    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1))
        await model.open()
        await model.settle()
        had_it, had_nothing = LogReader(model, 0, "fail"), LogReader(model, 0, "fail")
        await model.remove()
        await had_it.poll(fresh=True)
        assert had_it.rows
        await model._append(recorded_again(model.kept, model.incarnation, {}, dropped={SINK: "ann@host"}))
        await had_it.poll(fresh=True)
        ends = await had_it.published.ends()
        assert ends is not None
        assert ends["w0000"] == had_it.follower.seen
        assert await had_it.follower.rests()
        with pytest.raises(InputTrimmedError, match="ann@host dropped the log of the removed sink"):
            await had_nothing.poll(fresh=True)
        retained = PublishedOutput(model.store, REGION, SINK, from_retained=True)  # type: ignore[arg-type]
        follower = retained.follower("w0000", SplitPosition(0))
        assert [piece async for piece in follower.poll()] == []
        assert follower.seen == ends["w0000"]
        with pytest.raises(outputs.NoOutputError, match="ann@host dropped its log"):
            await anext(read_output(model.store, REGION, SINK))  # type: ignore[arg-type]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_who_is_registered_for_a_log_that_has_ended_reads_that_also_if_its_name_came_back() -> None:
    async def main() -> None:
        model = RestoredOutputModel(Publish.CHECKPOINT, random.Random(1))
        await model.open()
        await model.settle()

        async def registered(reader: str) -> str:
            published = PublishedOutput(model.store, REGION, SINK)  # type: ignore[arg-type]
            await published.register(reader, "source")
            return published.uid

        assert await registered("early") == SINK
        await model.remove()
        assert await registered("after the removal") == SINK
        last = model.kept[-1]
        back = msgspec.structs.replace(
            last,
            number=last.number + 1,
            parent=last.number,
            operators=notes(count="count", **{SINK: "sink"}),
            uids={SINK: "_9-shown"},
            retained=(*last.retained, last.number + 1),
        )
        await model._append(back)
        assert [await registered(one) for one in ("early", "after the removal", "new")] == [
            SINK,
            SINK,
            "_9-shown",
        ]

    trio.run(main)


def test_a_log_that_a_restore_took_back_as_a_whole_is_no_wait_without_end() -> None:
    """Also for a reader that has read nothing of it."""

    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1))
        await model.open()
        await model.settle()
        last, renamed = model.kept[-1], "_9-later"
        parts = {
            worker: msgspec.structs.replace(
                part,
                sinks={**part.sinks, renamed: part.sinks[SINK]},
                floors={**part.floors, output_chain(renamed): (1, 0)},
            )
            for worker, part in last.workers.items()
        }
        later = msgspec.structs.replace(
            last,
            number=last.number + 1,
            parent=last.number,
            workers=parts,
            operators=last.operators | notes(later="sink"),
            uids={"later": renamed},
            retained=(*last.retained, last.number + 1),
        )
        await model._append(later)
        fails = PublishedOutput(model.store, REGION, "later")  # type: ignore[arg-type]
        follows = PublishedOutput(model.store, REGION, "later", on_rewind="follow")  # type: ignore[arg-type]
        assert [await one.splits() != [] for one in (fails, follows)] == [True, True]
        await model._append(restored(model.kept, last, model.incarnation))
        await trio.sleep(1)
        with pytest.raises(OutputRewoundError, match="restored to checkpoint 1"):
            await fails.splits()
        with pytest.raises(OutputRewoundError, match="restored to checkpoint 1"):
            await anext(read_output(model.store, REGION, "later"))  # type: ignore[arg-type]
        assert await follows.splits() == [], "it may come again with a later graph"

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("revived", [True, False], ids=["taken back", "stays"])
def test_a_reader_that_knows_the_end_of_a_log_learns_that_a_restore_took_the_removal_back(
    revived: bool,
) -> None:
    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1))
        await model.open()
        await model.settle()
        before = model.kept[-1]
        published = PublishedOutput(model.store, REGION, SINK)  # type: ignore[arg-type]
        await published.watch_end(0)  # it has not ended
        await model.remove()
        target = before if revived else model.kept[-1]
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(published.watch_end, before.step)
            await trio.sleep(5)
            await model._append(restored(model.kept, target, model.incarnation))
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    if not revived:
        trio.run(main, clock=MockClock(autojump_threshold=0))
        return
    with pytest.raises(ExceptionGroup) as group:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert group.group_contains(OutputRewoundError, match="restored to checkpoint 1")
