"""A region that reads the output of another one, restored at random, never has a mix of two lines."""

import math
import random
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from checkpoint import limits
from checkpoint.chains import output_reading
from checkpoint.chains.output_reading import OnRewind, OutputFollower, PublishedOutput
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.core.records.outputs import Publish
from checkpoint.errors import OutputRewoundError
from dos_protocol.errors import DosError
from tests.checkpoint.restored_output_model import REGION, SINK, WORKERS, RestoredOutputModel
from tests.support.planted_source import planted

SEEDS = 12
ACTIONS = 120


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
                    self.at[piece.digest] = SplitPosition(piece.end, piece.digest, line=piece.line)
                    pieces_max -= 1
                    if not pieces_max:
                        break
        except OutputRewoundError as error:
            if self.published.on_rewind == "follow" and error.checkpoint:
                raise AssertionError("it is known where to continue") from error
            self._keep(error.step - 1)
            self.follower = self._at(max(self.at))  # as after a restore to a checkpoint from before
        if pieces_max == 0:  # the iteration was not ended: a source does so only when it ends
            self.follower = self._at(max(self.at))
        self._keep(self.follower._step)
        line_now = self.model.rows(self.follower._line)
        read = [self.rows[step] for step in sorted(self.rows)]
        assert read == [row[self.worker] for row in line_now][: len(read)], "a mix of two lines"

    def _keep(self, last: int) -> None:
        """Forget what was taken back, or is read again."""
        if max(self.rows, default=0) > last:
            self.notices += 1
        self.rows = {step: row for step, row in self.rows.items() if step <= last}
        self.at = {step: at for step, at in self.at.items() if step <= last}


def lives(publish: Publish, on_rewind: OnRewind, seed: int) -> int:
    """Every other region states only its last two restores: of older lines a reader knows nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(limits, "rewinds_kept_max", 2)
        return trio.run(play, publish, on_rewind, random.Random(seed), clock=MockClock())


async def play(publish: Publish, on_rewind: OnRewind, rng: random.Random) -> int:
    model = RestoredOutputModel(publish, rng)
    await model.open()
    readers = [LogReader(model, worker, on_rewind) for worker in WORKERS]
    for _ in range(ACTIONS):
        if rng.random() < 0.7:
            await model.happen()
            continue
        reader, fresh, most = rng.choice(readers), rng.random() < 0.5, rng.choice([2, 1_000])
        await model.is_read(partial(reader.poll, fresh=fresh, pieces_max=most))
    await model.settle()
    for reader in readers:
        for _ in range(4):
            await reader.poll(fresh=True)
        present = [row[reader.worker] for row in model.rows(model.line)]
        assert [reader.rows[step] for step in sorted(reader.rows)] == present
    return sum(reader.notices for reader in readers)


@pytest.mark.parametrize("on_rewind", ["fail", "follow"])
@pytest.mark.parametrize("publish", list(Publish))
def test_a_follower_of_a_region_that_is_restored_at_random_never_has_a_mix(
    publish: Publish, on_rewind: OnRewind
) -> None:
    notices = sum(lives(publish, on_rewind, seed) for seed in range(SEEDS))
    assert notices >= SEEDS / 2, "followers were there when output was taken back"


def lines_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(output_reading, "taken_back", lambda *_: None)


def records_of_any_line_count(patch: pytest.MonkeyPatch) -> None:
    async def belongs(*_: object) -> bool:
        return True

    patch.setattr(OutputFollower, "_belongs", belongs)


def what_is_covered_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    waits = planted(output_reading, "end <= proved_size", "False")["OutputFollower"]
    patch.setattr(OutputFollower, "_belongs", waits._belongs)


@pytest.mark.parametrize(
    "bug", [lines_are_not_compared, records_of_any_line_count, what_is_covered_is_waited_for]
)
def test_random_restores_find_planted_bugs_of_followers(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(4 * SEEDS):
        for publish in Publish:
            try:
                lives(publish, "follow", seed)
            except (AssertionError, DosError):
                return
    pytest.fail("not found")
