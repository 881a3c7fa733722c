"""Random lives of replicas at several sites, and of the reader that merges them: each row is passed once.

Replicas are restored to older checkpoints, get other workers, and trim their logs; the reader dies and
continues from the state of its filter. The oracle is the list of rows that every replica gives in the end.
"""

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from checkpoint import RetentionRule, input_register, limits
from checkpoint.chains.consumer_register import QueryRegistration, change_register
from checkpoint.chains.input_log import InputFollower
from checkpoint.core.records.consumers import with_rule
from checkpoint.core.records.outputs import Publish
from dataflow import merged
from dataflow.merged import open_merged
from dataflow.merging import merge as merge_module
from dataflow.merging import recording
from dataflow.merging.merge import MergeOrder, ReplicaPlace, StreamStatus
from dataflow.merging.recording import PRODUCER, MergeRecorder
from dos_client import QuorumUnavailableError
from dos_protocol.errors import ClosedError, DosError, FencedError, errors_in
from tests.checkpoint.trim_model import PatientHost
from tests.dataflow.replica_model import COLUMNS, REGION, SINK, ModelRow, ReplicaModel, ReplicaStore
from tests.shells.trio_run import run_deterministic
from tests.support.planted_source import planted

SEEDS = 8
TOKEN_SEEDS = range(6, 14)
ACTIONS = 60


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "output_segment_bytes_max", 300)
    monkeypatch.setattr(limits, "output_poll_s", 0.0)
    monkeypatch.setattr(limits, "input_segment_bytes_max", 200)


class Reader:
    """A process that merges the replicas, which dies and is started again, and what it has recorded."""

    registered = False
    """Whether the replicas trim what it has acknowledged, and nothing else."""

    def __init__(self, models: dict[str, ReplicaModel], rows: list[ModelRow], rng: random.Random) -> None:
        self.rng = rng
        self.models = models
        self.truth = Counter(rows)
        self.store = ReplicaStore()
        self.recorded: Counter[ModelRow] = Counter()
        self.at, self.digest, self.mark = 0, 0, -1
        self.recorder: MergeRecorder | None = None
        self.over = False
        self.consumer = ""

    async def read(self) -> None:
        """Merge until it is cancelled. Its record is trimmed to the newest bytes."""
        rule = RetentionRule(by_consumers=False, bytes_max=self.rng.choice([1, 400]))
        place = input_register("board", "merged")
        await change_register(PatientHost(self.store), place, lambda register: with_rule(register, rule))
        self.recorder = MergeRecorder(
            self.store,  # type: ignore[arg-type]
            "board",
            "merged",
            self._order(),
            consumer=self.consumer,
            connect=self._connect_to,
        )
        await self.recorder.run()
        self.over = True

    def _order(self) -> MergeOrder:
        places = tuple(ReplicaPlace(site, "", REGION, SINK) for site in self.models)
        return MergeOrder(places, COLUMNS, ("at",), compare=self.rng.choice([0, 1]))

    @asynccontextmanager
    async def _connect_to(self, place: ReplicaPlace) -> AsyncIterator[Any]:
        yield self.models[place.site].store

    async def check(self) -> None:
        """Read what was recorded since the last call."""
        follower = InputFollower(
            self.store,  # type: ignore[arg-type]
            "board",
            "merged",
            PRODUCER,
            at=self.at,
            digest=self.digest,
        )
        async with aclosing(follower.poll()) as pieces:
            async for piece in pieces:
                self.at, self.digest = piece.end, piece.digest
                if piece.mark is None:
                    self._take(piece.data)
                else:
                    self.mark = piece.mark.mark
                    missing = {row for row in self.truth - self.recorded if row.at <= self.mark}
                    assert not missing, f"rows were not passed: {missing}"
        follower.close()
        if self.rng.random() < 0.3 and (log := self.recorder and self.recorder.log):
            with suppress(FencedError, ClosedError):
                await log.trim()

    def _take(self, data: bytes) -> None:
        with pa.ipc.open_stream(data) as reader:
            self._take_rows(reader.read_all())

    def _take_rows(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            at = round(row["at"].timestamp() * 1_000_000)
            assert at > self.mark, "a row comes after the mark that promised that it would not"
            self.recorded[ModelRow(at, row["n"])] += 1
        assert not self.recorded - self.truth, "a row was passed twice"

    def status(self) -> list[StreamStatus]:
        """Return the status of the streams."""
        return self.recorder.merge.observe()

    @property
    def waits(self) -> bool:
        """Whether no replica has all rows any more."""
        return self.recorder is not None and self.recorder.merge.missing() is not None


class TokenReader(Reader):
    """An application outside of any region. It commits some of its batches with their tokens, and dies."""

    def __init__(self, models: dict[str, ReplicaModel], rows: list[ModelRow], rng: random.Random) -> None:
        super().__init__(models, rows, rng)
        self.token: bytes | None = None

    async def read(self) -> None:
        """Read until it is cancelled, which may be between a batch and its commit."""
        async with open_merged(self._order(), self._connect_to, after=self.token) as self.output:
            async for batch in self.output:
                await trio.sleep(self.rng.choice([0, 0, 0.05]))
                if batch.table is not None:
                    self._take_rows(batch.table)
                self.token, self.mark = batch.token, batch.mark_us
                self.output.acknowledge(batch.token)
        self.over = True

    async def check(self) -> None:
        """Check what was committed."""
        missing = {row for row in self.truth - self.recorded if row.at <= self.mark}
        assert not missing, f"rows were not passed: {missing}"

    @property
    def waits(self) -> bool:
        return self.output.missing() is not None

    def status(self) -> list[StreamStatus]:
        return self.output.status()


async def play(rng: random.Random, often: str, kind: type[Reader] = Reader) -> Counter[str]:
    rows = [ModelRow(rng.randrange(3000), rng.randrange(4)) for _ in range(rng.choice([20, 60]))]
    publish = rng.choice([Publish.STEP, Publish.STEP, Publish.CHECKPOINT])
    models = {name: ReplicaModel(rows, rng, publish) for name in "abc"[: rng.choice([1, 2, 3])]}
    for model in models.values():
        model.keeps_for_consumers = kind.registered
        await model.open()
    reader, counts = kind(models, rows, rng), Counter[str]()
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
            await reader.check()
            if rng.random() < 0.05:
                scope.cancel()
                for _ in range(rng.choice([0, 0, 10])):
                    await rng.choice([*models.values()]).happen(often)
                for model in models.values() if kind.registered else ():
                    await model.trim_all()
                await trio.sleep(1)
                scope = trio.CancelScope()
                nursery.start_soon(reads)
                counts["reader died"] += 1
        for model in models.values():
            await model.settle()
        with trio.move_on_after(60):
            while not reader.over and not reader.waits:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(1)
        await reader.check()
        counts["over"] += reader.over
        if reader.over:
            assert reader.recorded == reader.truth
        else:
            assert reader.waits, [str(one) for one in reader.status()]
        nursery.cancel_scope.cancel()
    counts["trimmed"] = sum(model.has_trimmed for model in models.values())
    counts["restores"] = sum(model.restores for model in models.values())
    counts["changes"] = sum(model.changes for model in models.values())
    return counts


def run(seed: int, often: str, kind: type[Reader] = Reader) -> "Counter[str]":
    async def life(_: object = None) -> Counter[str]:
        return await play(random.Random(seed), often, kind)

    with pytest.MonkeyPatch.context() as patch:
        if seed % 2:
            patch.setattr(limits, "rewinds_kept_max", 2)  # of older lines a reader knows nothing
        if kind is not Reader:
            return run_deterministic(life, seed)[0]
        return trio.run(life, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("often", ["trim", "workers", "restore"])
def test_each_row_is_passed_once_whatever_happens_to_replicas_and_reader(often: str) -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts += run(seed, often)
    assert counts["over"] >= SEEDS / 2
    assert min(counts["reader died"], counts["restores"], counts["changes"]) >= SEEDS / 4


@pytest.mark.parametrize("often", ["trim", "workers", "restore"])
def test_an_application_that_continues_after_its_token_gets_each_row_once(often: str) -> None:
    counts = Counter[str]()
    for seed in TOKEN_SEEDS:
        counts += run(seed, often, TokenReader)
    assert counts["over"] >= len(TOKEN_SEEDS) / 2
    assert counts["reader died"] >= len(TOKEN_SEEDS) / 2


OF_TOKENS = {
    "the token is of before the batch": (
        """        table, mark = await self._merge.next()
        return MergedBatch(table, mark, _OF.pack(self._of) + encode_filter(self._merge.state()))""",
        """        before = self._merge._filter.state()
        table, mark = await self._merge.next()
        return MergedBatch(table, mark, _OF.pack(self._of) + encode_filter(before))""",
    ),
    "the token has only the mark": (
        "encode_filter(self._merge.state())",
        "encode_filter(FilterState.at(mark))",
    ),
    "the token is not read": ("merge = Merge(order, state=state)", "merge = Merge(order)"),
}


@pytest.mark.parametrize("bug", OF_TOKENS)
def test_planted_bugs_of_tokens_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = planted(merged, *OF_TOKENS[bug])
    monkeypatch.setattr(sys.modules[__name__], "open_merged", broken["open_merged"])
    for seed in range(20):
        try:
            run(seed, ("trim", "workers", "restore")[seed % 3], TokenReader)
        except (AssertionError, ExceptionGroup) as error:
            if isinstance(errors_in(error)[0], AssertionError):
                return
            raise
    pytest.fail(f"not found: {bug}")


OF_STREAMS = {
    "rows that were trimmed count as given": ("base = max(base, _time_of(first, self._place).high)", "pass"),
}
OF_THE_MERGE = {
    "the mark of a record comes before its rows": (
        "        if not self.skips(output):",
        "        self.set_mark(site, log, output.head.time.mark)\n        if not self.skips(output):",
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


OF_THE_RECORD = {
    "what was recorded above M is forgotten": (
        "passed.take(_ONLY, hash_rows(batch.columns), latest_times(batch, self._order.time))",
        "pass",
    ),
    "the next process reads too little of the record": (
        "while self._above and self._above[0][0] <= mark:",
        "while self._above and self._above[0][0] <= mark + 200:",
    ),
    "what the last note needs is trimmed": ("keeps_from = self._noted_at", "keeps_from = self._low.at"),
    "a mark is recorded before its rows": (
        "            if rows is not None:",
        "            await log.append_mark(OriginMark(max(1, min(mark, 9)), 1, 1, 0))\n            if rows:",
    ),
}


@pytest.mark.parametrize("bug", [*OF_STREAMS, *OF_THE_MERGE, *OF_THE_RECORD])
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug in OF_STREAMS:
        broken = planted(merge_module, *OF_STREAMS[bug])
        monkeypatch.setattr(recording, "ReplicaStream", broken["ReplicaStream"])
    elif bug in OF_THE_MERGE:
        broken = planted(merge_module, *OF_THE_MERGE[bug])
        monkeypatch.setattr(recording, "Merge", broken["Merge"])
    else:
        broken = planted(recording, *OF_THE_RECORD[bug])
        monkeypatch.setattr(sys.modules[__name__], "MergeRecorder", broken["MergeRecorder"])
    for seed in range(40):
        try:
            run(seed, ("trim", "workers", "restore")[seed % 3])
        except (AssertionError, DosError, ExceptionGroup) as error:
            if isinstance(errors_in(error)[0], (AssertionError, DosError)):
                return
            raise
    pytest.fail(f"not found: {bug}")


async def grow_while_read(layouts: list[int], consumer: str = "") -> None:
    """A replica gets other workers. After each change, its first worker is read before the others write."""
    rows = [ModelRow(10 * number, number) for number in range(200)]
    model = ReplicaModel(rows, random.Random(1))
    await model.open()
    reader = Reader({"a": model}, rows, random.Random(1))
    reader.consumer = consumer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        for workers in layouts:
            await model.make(0)
            await trio.sleep(1)
            await model.commit()
            await model.open(tuple(range(workers)))
            for _ in range(5):
                for worker in model.workers:
                    await model.make(worker)
                    await trio.sleep(1)
            await trio.sleep(2)
            await reader.check()
        await model.settle()
        with trio.fail_after(60):
            while not reader.over:
                await trio.sleep(1)
                await reader.check()


@pytest.mark.parametrize("layouts", [[2, 1, 2], [1, 3, 1, 2]])
def test_other_workers_of_a_replica_are_noticed_before_any_mark_counts(layouts: list[int]) -> None:
    trio.run(grow_while_read, layouts, clock=MockClock(autojump_threshold=0))


def test_a_replica_that_cannot_take_an_acknowledgement_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def registered(_: object, start: object, lines: object = None, *, again: bool = False) -> None:
        del lines, again
        asked.append(start)

    async def refused(_: object, splits: object, lines: object) -> None:
        del lines
        asked.append(splits)
        raise QuorumUnavailableError("too few members")

    monkeypatch.setattr(QueryRegistration, "begin", registered)
    monkeypatch.setattr(QueryRegistration, "continues", registered)
    monkeypatch.setattr(QueryRegistration, "committed", refused)
    monkeypatch.setattr(limits, "query_publish_s", 0.3)
    trio.run(grow_while_read, [2, 1], "board", clock=MockClock(autojump_threshold=0))
    assert len(asked) > 2, "it tried again"


def test_a_new_worker_that_is_not_noticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = planted(merge_module, "or back or not shared <= self._logs.keys()", "or back")
    monkeypatch.setattr(recording, "ReplicaStream", broken["ReplicaStream"])
    monkeypatch.setattr(limits, "inputs_poll_s", 1e6)
    with pytest.raises(ExceptionGroup) as found:
        trio.run(grow_while_read, [2, 1, 2], clock=MockClock(autojump_threshold=0))
    assert isinstance(errors_in(found.value)[0], (AssertionError, trio.TooSlowError))
