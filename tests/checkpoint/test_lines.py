"""Which output is taken back by restores, and what readers of output return meanwhile: pure, and on histories
of a region that is restored at random.
"""

import random
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.records.lines import parting, restored, taken_back
from checkpoint.core.records.manifest import Checkpoint, check_checkpoint, in_its_version
from checkpoint.core.records.outputs import Publish
from checkpoint.errors import OutputRewoundError
from dataflow import outputs
from dataflow.outputs import StepRows, read_output
from dos_protocol.errors import DosError
from journal import Position
from tests.checkpoint.manifest_samples import numbered_checkpoint, worker_checkpoint
from tests.checkpoint.restored_output_model import REGION, SINK, RestoredOutputModel

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
        check_checkpoint(in_its_version(record), before=kept[-1] if kept else None)
        kept.append(in_its_version(record))
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


# --- readers -----------------------------------------------------------------------------------------------


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
        assert f"after_step={error.step - 1}, line=" in error.remedy
        del self.read[error.step - 1 :]
        self.line = error.line
        self.notices += 1

    def _take(self, step: StepRows) -> None:
        assert step.step == len(self.read) + 1
        assert step.table is not None
        self.read.append(step.table.column("row").to_pylist())
        self.line = step.line


async def play(publish: Publish, rng: random.Random) -> int:
    model = RestoredOutputModel(publish, rng)
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


@pytest.mark.parametrize("publish", list(Publish))
def test_readers_of_a_region_that_is_restored_at_random_never_return_a_mix(publish: Publish) -> None:
    notices = sum(trio.run(play, publish, random.Random(seed)) for seed in range(SEEDS))
    assert notices >= SEEDS / 2, "readers were there when output was taken back"


def reads_what_the_log_holds(patch: pytest.MonkeyPatch) -> None:
    """A log is read to its head, whatever line that is of."""
    init = outputs._WorkerLog.__init__

    def of_any_line(self: Any, *args: Any) -> None:
        init(self, *args)
        self._line = type("Every", (), {"__ne__": lambda *_: False})()

    patch.setattr(outputs._WorkerLog, "__init__", of_any_line)


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


@pytest.mark.parametrize(
    "bug", [reads_what_the_log_holds, does_not_compare_lines, restores_follow_the_line_before]
)
def test_the_random_restores_find_planted_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(4 * SEEDS):
        for publish in Publish:
            try:
                trio.run(play, publish, random.Random(seed))
            except (AssertionError, DosError):
                return
    pytest.fail("not found")
