"""Random lives of replicas at several sites, and of the reader that merges them: each row is passed once.

Replicas are restored to older checkpoints, get other workers, and trim their logs; the reader dies and
continues from the state of its filter. The oracle is the list of rows that every replica gives in the end.
"""

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from checkpoint import limits
from checkpoint.core.outputs import Publish
from dataflow.core.duplicate_filter import BEFORE_ALL, FilterState
from dataflow.merging import merge as merge_module
from dataflow.merging import replica_stream
from dataflow.merging.merge import Merge
from dataflow.merging.replica_stream import ReplicaPlace, ReplicaStream
from dos_protocol.errors import DosError, errors_in
from tests.dataflow.replica_model import COLUMNS, REGION, SINK, ModelRow, ReplicaModel
from tests.support.planted_source import planted

SEEDS = 12
ACTIONS = 60


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "output_segment_bytes_max", 300)
    monkeypatch.setattr(limits, "output_poll_s", 0.0)


class Reader:
    """The reader. What it has recorded is safe: rows, and the state of the filter after them."""

    def __init__(self, models: dict[str, ReplicaModel], rows: list[ModelRow], rng: random.Random) -> None:
        self.rng = rng
        self.models = models
        self.truth = Counter(rows)
        self.passed: Counter[ModelRow] = Counter()
        self.state: FilterState | None = None
        self.mark = BEFORE_ALL
        self.waited = 0

    async def read(self) -> None:
        """Read until it is cancelled."""
        sites = list(self.models)
        self.merge = Merge(sites, COLUMNS, ["at"], state=self.state, compare=self.rng.choice([0, 1]))
        async with trio.open_nursery() as nursery:
            for site, model in self.models.items():
                place = ReplicaPlace(site, "", REGION, SINK)
                nursery.start_soon(ReplicaStream(place, self.merge, self._connect_to(model)).run)
            while not self.merge.is_over:
                rows, mark = await self.merge.next()
                self._record([] if rows is None else rows.to_pylist(), mark, self.merge.state())
            nursery.cancel_scope.cancel()

    @staticmethod
    def _connect_to(model: ReplicaModel) -> Any:
        @asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            yield model.store

        return connect

    def _record(self, rows: list[dict[str, Any]], mark: int, state: FilterState) -> None:
        for row in rows:
            at = round(row["at"].timestamp() * 1_000_000)
            assert at > self.mark, "a row comes after the mark that promised that it would not"
            self.passed[ModelRow(at, row["n"])] += 1
        self.mark, self.state = mark, state
        assert not self.passed - self.truth, "a row was passed twice"
        missing = {row for row in self.truth - self.passed if row.at <= mark}
        assert not missing, f"rows were not passed: {missing}"


async def play(rng: random.Random, often: str) -> Counter[str]:
    rows = [ModelRow(rng.randrange(3000), rng.randrange(4)) for _ in range(rng.choice([20, 60]))]
    publish = rng.choice([Publish.STEP, Publish.STEP, Publish.CUT])
    models = {name: ReplicaModel(rows, rng, publish) for name in "abc"[: rng.choice([1, 2, 3])]}
    for model in models.values():
        await model.open()
    reader, counts = Reader(models, rows, rng), Counter[str]()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def reads() -> None:
            with scope:
                await reader.read()

        nursery.start_soon(reads)
        for _ in range(ACTIONS):
            if rng.random() < 0.8:
                await rng.choice([*models.values()]).happen(often)
            await trio.sleep(rng.choice([0, 0.01, 0.1, 2]))
            if rng.random() < 0.05:
                scope.cancel()
                for _ in range(rng.choice([0, 0, 10])):
                    await rng.choice([*models.values()]).happen(often)
                await trio.sleep(1)
                scope = trio.CancelScope()
                nursery.start_soon(reads)
                counts["reader died"] += 1
        for model in models.values():
            await model.settle()
        with trio.move_on_after(60):
            while not reader.merge.is_over:
                await trio.sleep(1)
                if reader.merge.missing() is not None:
                    counts["waits"] += 1
                    break
        counts["over"] += reader.merge.is_over
        stuck = not reader.merge.is_over and reader.merge.missing() is None
        assert not stuck, [str(one) for one in reader.merge.observe()]
        nursery.cancel_scope.cancel()
    counts["restores"] = sum(model.restores for model in models.values())
    counts["changes"] = sum(model.changes for model in models.values())
    return counts


def run(seed: int, often: str) -> "Counter[str]":
    async def life() -> Counter[str]:
        return await play(random.Random(seed), often)

    return trio.run(life, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("often", ["trim", "workers", "restore"])
def test_each_row_is_passed_once_whatever_happens_to_replicas_and_reader(often: str) -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts += run(seed, often)
    assert counts["over"] >= SEEDS / 2
    assert min(counts["reader died"], counts["restores"], counts["changes"]) >= SEEDS / 4


OF_STREAMS = {
    "rows that were trimmed count as given": ("base = max(base, self._time_of(first).high)", "pass"),
    "a log that is not read to its end rests": (
        "and await log.follower.rests()",
        "and split[1:] not in str(cut.workers)",
    ),
}
OF_THE_MERGE = {
    "the mark of a record comes before its rows": (
        "        if not self.skips(output):",
        "        self.set_mark(site, log, output.head.time.mark)\n        if not self.skips(output):",
    ),
    "the state has no passed rows": (
        "return self._filter.state()",
        "return FilterState(self.mark, *(one[:0] for one in self._filter.state()[1:]))",
    ),
    "rows up to the latest time are skipped": (
        "output.head.time.high <= self.mark",
        "output.head.time.mark <= self.mark",
    ),
    "what was taken is passed with the next mark": (
        "self._passed_mark = self._filter.mark\n        self._room",
        "self._passed_mark = max(END - 1, self._filter.mark)\n        self._room",
    ),
}


@pytest.mark.parametrize("bug", [*OF_STREAMS, *OF_THE_MERGE])
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    this = sys.modules[__name__]
    if bug in OF_STREAMS:
        broken = planted(replica_stream, *OF_STREAMS[bug])
        monkeypatch.setattr(this, "ReplicaStream", broken["ReplicaStream"])
    else:
        broken = planted(merge_module, *OF_THE_MERGE[bug])
        monkeypatch.setattr(this, "Merge", broken["Merge"])
    for seed in range(40):
        try:
            run(seed, ("trim", "workers", "restore")[seed % 3])
        except (AssertionError, DosError, ExceptionGroup) as error:
            if isinstance(errors_in(error)[0], (AssertionError, DosError)):
                return
            raise
    pytest.fail(f"not found: {bug}")


OF_WORKERS = {
    "a former worker that comes back is not noticed": ("or back or not shared", "or not shared"),
    "a new worker is not noticed": ("or back or not shared <= self._logs.keys()", "or back"),
}


async def grow_while_read(layouts: list[int]) -> None:
    """A replica gets other workers. After each change, its first worker is read before the others write."""
    rows = [ModelRow(10 * number, number) for number in range(200)]
    model = ReplicaModel(rows, random.Random(1))
    await model.open()
    reader = Reader({"a": model}, rows, random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        for workers in layouts:
            await model.make(0)
            await trio.sleep(1)
            await model.commit()
            await model.open(tuple(range(workers)))
            await trio.sleep(2)
            for _ in range(5):
                for worker in model.workers:
                    await model.make(worker)
                    await trio.sleep(0.1)
            await trio.sleep(2)
        await model.settle()
        with trio.fail_after(60):
            while not reader.merge.is_over:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(1)


@pytest.mark.parametrize("layouts", [[2, 1, 2], [1, 3, 1, 2]])
def test_other_workers_of_a_replica_are_noticed_before_any_mark_counts(layouts: list[int]) -> None:
    trio.run(grow_while_read, layouts, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("bug", OF_WORKERS)
def test_a_worker_that_is_not_noticed_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = planted(replica_stream, *OF_WORKERS[bug])
    monkeypatch.setattr(sys.modules[__name__], "ReplicaStream", broken["ReplicaStream"])
    monkeypatch.setattr(limits, "inputs_poll_s", 1e6)
    with pytest.raises(ExceptionGroup) as found:
        trio.run(grow_while_read, [2, 1, 2], clock=MockClock(autojump_threshold=0))
    assert isinstance(errors_in(found.value)[0], (AssertionError, trio.TooSlowError))
