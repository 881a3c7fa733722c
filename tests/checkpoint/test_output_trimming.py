"""An output log is trimmed to what registered regions need, and never below a retained checkpoint of its own
region. One worker and its readers, on a store in memory: real chains, manifests and trimming.
"""

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from checkpoint import limits
from checkpoint.chains.consumer_register import TrimPlanner, read_register
from checkpoint.chains.manifest_log import ManifestLog, retained_checkpoints
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import PublishedOutput
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
)
from checkpoint.core.records.consumers import RetentionRule, output_register
from checkpoint.core.records.manifest import SplitPosition, floors_of, gaps_of, retained_with
from checkpoint.core.records.outputs import BatchOutput, OutputDecision, Publish, output_chain
from checkpoint.core.region import worker_directory
from checkpoint.errors import InputTrimmedError
from dataflow.worker.journals import FloorCollector
from dos_protocol.errors import DosError
from journal import NO_FLOOR, Position, inspect_chain_at, parse_segment_name
from tests.checkpoint.manifest_samples import notes, numbered_checkpoint, worker_checkpoint
from tests.checkpoint.savepoint_model import taken_over
from tests.checkpoint.trim_model import SOURCE, ConsumerModel, Store
from tests.support.planted_source import is_found

REGION, SINK, SPLIT = "above", "shown", "w0000"
CHAIN, DIRECTORY = output_chain(SINK), worker_directory(REGION, 0)
SEEDS = 3
STEPS = 40


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "output_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "output_poll_s", 0.0)


def data(step: int) -> bytes:
    return b"%06d" % step * 8


class OutputModel:
    """The region that writes, with one worker, and the regions that read."""

    place, split = output_register(REGION, SINK), SPLIT
    rule, driven = RetentionRule(), False

    def __init__(self, publish: Publish) -> None:
        self.publish, self.store, self.now_ms = publish, Store(), 1_000
        self.events: list[Any] = []
        self.regions: dict[str, ConsumerModel] = {}
        self.manifest: ManifestLog | None = None
        self.number = 0

    async def open(self) -> None:
        """A driver and its worker, after those before have died: at the last checkpoint."""
        self.manifest, opened = await taken_over(self.manifest, self.store, REGION, self.events)
        self.kept, self.incarnation, last = opened.kept, opened.incarnation, opened.last_checkpoint
        self.step = last.step if last else 0
        at = last.workers[0].sinks.get(SINK) if last else None
        floors = floors_of(self.kept, 0)
        claim = await self.store.claim(DIRECTORY, self.incarnation)
        self.collecting = FloorCollector(claim)
        self.log = await OutputLog.open(
            claim,
            SINK,
            self.publish,
            after_step=self.step,
            at=None if at is None else msgspec.convert(at, Position),
            generation=1,
            released=floors.get(CHAIN, NO_FLOOR),
            workers=1,
            driven=self.driven,
        )
        self.collecting.release(floors, gaps_of(self.kept, 0))
        planner = TrimPlanner(self.store, self.place, self.rule)
        self.trimmer = self.log.trimmer(planner, partial(self.collecting.permit, CHAIN))

    async def make(self) -> None:
        """One step: appended, or discarded because it was published before a reset."""
        self.step += 1
        if self.log.judge(self.step, self.step) is OutputDecision.APPEND:
            await self.log.append(SINK, self.step, 1, self.step, data(self.step), {})

    async def checkpoint(self, *, commits: bool = True) -> None:
        await self.make()
        end = await self.log.synced(self.step)
        self.number = max(self.number, self.kept[-1].number if self.kept else 0) + 1
        part = worker_checkpoint(
            self.incarnation, 100, sinks={SINK: msgspec.to_builtins(end)}, floors={CHAIN: self.log.vote_floor}
        )
        record = numbered_checkpoint(
            self.number,
            incarnation=self.incarnation,
            parent=self.kept[-1].number if self.kept else 0,
            step=self.step,
            workers={0: part},
            operators=notes(**{SINK: "sink"}),
            retained=retained_with(self.kept, self.number, 2),
        )
        if not commits:
            return
        assert self.manifest is not None
        await self.manifest.append(AppendCheckpoint(record))
        assert isinstance(self.events[-1], CheckpointAppended)
        self.kept = self.manifest._kept
        self.collecting.release(floors_of(self.kept, 0), gaps_of(self.kept, 0))

    async def trim(self) -> None:
        allowed = self.collecting.released.get(CHAIN, NO_FLOOR)
        await self.log.trim(self.trimmer, DIRECTORY, SPLIT, allowed)

    async def begin(self) -> int:
        return await PublishedOutput(self.store, REGION, SINK).begin(SPLIT)  # type: ignore[arg-type]

    def follower(self, at: SplitPosition, **options: Any) -> Any:
        output = PublishedOutput(self.store, REGION, SINK, **options)  # type: ignore[arg-type]
        return output.follower(SPLIT, at)

    async def region(self, name: str) -> ConsumerModel:
        if name not in self.regions:
            region = ConsumerModel(self, name, 2)
            await region.register()
            await region.open()
            self.regions[name] = region
        return self.regions[name]

    def bases(self) -> list[int]:
        names = {name for server in self.store.servers for name in server.objects.get(DIRECTORY, {})}
        return sorted(parse_segment_name(name).base for name in names)  # type: ignore[union-attr]

    async def check(self) -> None:
        """Each retained checkpoint of the region itself, and of each reader, has what it needs."""
        kept = await retained_checkpoints(self.store, REGION)
        floor = floors_of(kept, 0).get(CHAIN, NO_FLOOR)
        for checkpoint in kept:
            at = msgspec.convert(checkpoint.workers[0].sinks[SINK], Position)
            try:
                chain = await inspect_chain_at(self.store, DIRECTORY, CHAIN, at, floor=floor[1])
            except DosError as error:
                raise AssertionError(f"checkpoint {checkpoint.number} cannot be restored: {error}") from error
            assert chain.end == at
        visible = kept[-1].step if kept and self.publish is Publish.CHECKPOINT else self.log.last_step
        assert (await read_register(self.store, self.place)).consumers.keys() >= self.regions.keys()
        for name, region in self.regions.items():
            for checkpoint in await retained_checkpoints(self.store, name) or [None]:
                read = {} if checkpoint is None else checkpoint.workers[0].sources[SOURCE]
                at_split = read.get(SPLIT, SplitPosition(0))
                late = at_split.position == 0 and region.begin > 0
                try:
                    found = [piece async for piece in self.follower(at_split, from_retained=late).poll()]
                except InputTrimmedError as error:
                    raise AssertionError(f"{name} needs {at_split}: {error}") from error
                steps = [piece.digest for piece in found]
                first = steps[0] if late and steps else at_split.digest + 1
                if kept or self.publish is Publish.STEP:
                    assert steps == list(range(first, visible + 1)), f"{name} at {at_split}"
                assert [piece.data for piece in found] == [data(step) for step in steps]


async def play(publish: Publish, rng: random.Random) -> None:
    model = OutputModel(publish)
    await model.open()
    await model.region("a")

    async def steps() -> None:
        for _ in range(rng.choice([1, 2, 4])):
            await model.make()

    async def read(name: str) -> None:
        region = await model.region(name)
        await region.read(rng.choice([2, 1_000]))
        await region.checkpoint()

    async def trims() -> None:
        for _ in range(rng.choice([1, 3])):
            await model.trim()

    async def dies_between_vote_and_commit() -> None:
        await model.trim()
        await model.checkpoint(commits=False)
        await model.open()

    for _ in range(STEPS):
        choices: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, steps),
            (6, model.checkpoint),
            (8, partial(read, rng.choice("aab"))),
            (6, trims),
            (2, model.open),
            (1, dies_between_vote_and_commit),
        ]
        await rng.choices([work for _, work in choices], [weight for weight, _ in choices])[0]()
        await model.check()


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("publish", list(Publish))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_regions_restore_and_readers_continue(seed: int, publish: Publish) -> None:
    trio.run(play, publish, random.Random(seed))


def own_checkpoints_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """A log is trimmed to what readers need, whatever its own region has retained."""
    trim = OutputLog.trim

    async def all_allowed(self: OutputLog, trimmer: Any, directory: str, split: str, allowed: Any) -> None:
        del allowed
        await trim(self, trimmer, directory, split, (1 << 60, 0))

    patch.setattr(OutputLog, "trim", all_allowed)


def readers_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """What a checkpoint has released is deleted without a look at the register."""
    release = FloorCollector.release

    def at_once(self: FloorCollector, floors: Any, gaps: Any) -> None:
        release(self, floors, gaps)
        for chain, floor in self.released.items():
            self.permit(chain, floor)

    patch.setattr(FloorCollector, "release", at_once)
    patch.setattr(OutputLog, "vote_floor", property(lambda self: self._segments.now()[-1]))


@pytest.mark.parametrize("bug", [own_checkpoints_do_not_count, readers_do_not_count])
def test_the_random_histories_find_planted_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    seeds = range(SEEDS)
    runs = (partial(trio.run, play, publish, random.Random(seed)) for seed in seeds for publish in Publish)
    assert is_found(runs, AssertionError, DosError)


@pytest.mark.trio
@pytest.mark.parametrize("publish", list(Publish))
async def test_a_log_stays_short_and_is_not_deleted_without_a_reader(publish: Publish) -> None:
    model = OutputModel(publish)
    await model.open()
    for _ in range(10):
        await model.checkpoint()
        await model.trim()
    assert model.bases()[0] == 0
    counts = []
    for _ in range(60):
        await model.checkpoint()
        region = await model.region("reader")
        await region.read(1_000)
        await region.checkpoint()
        await model.trim()
        counts.append(len(model.bases()))
    assert max(counts[30:]) <= max(counts[10:30]) < 20
    await model.check()


class DrivenModel(OutputModel):
    """A log that the batches of a query fill. `spans`: batch -> where its output is, as its record states."""

    def __init__(self, rule: RetentionRule) -> None:
        super().__init__(Publish.CHECKPOINT)
        self.rule, self.driven = rule, True
        self.spans: list[tuple[int, int, float]] = []

    async def batch(self) -> None:
        begin = self.spans[-1][1] if self.spans else 0
        await self.checkpoint()
        self.log.batch_processed()
        self.spans.append((begin, self.kept[-1].workers[0].sinks[SINK]["size"], trio.current_time()))

    async def check_readable(self) -> None:
        """The output of the last two batches is there, and that of younger ones, whatever the rule is."""
        lowest, now = self.bases()[0], trio.current_time()
        for index, (begin, end, at) in enumerate(self.spans):
            if index >= len(self.spans) - 2 or now - at < limits.batch_known_s:
                assert lowest <= begin, f"batch {index}, from {begin} to {end}, was deleted up to {lowest}"


@pytest.mark.parametrize(
    "rule", [RetentionRule(), RetentionRule(bytes_max=1), RetentionRule(age_max_s=0.001)], ids=str
)
def test_the_log_of_a_driven_region_keeps_what_a_batch_may_read_and_deletes_the_rest(
    rule: RetentionRule,
) -> None:
    clock = trio.testing.MockClock()

    async def play() -> None:
        model = DrivenModel(rule)
        await model.open()
        longest = 0
        for number in range(60):
            await model.batch()
            clock.jump(limits.batch_known_s / 6)
            await model.trim()
            await model.check_readable()
            if number % 20 == 19:
                await model.open()  # its worker has lost what it knew of earlier batches
            if number > 10:
                longest = max(longest, len(model.bases()))
            await model.check()
        assert model.bases()[0] > 0, "without another reader the output that Spark has committed is deleted"
        assert longest < 40

    trio.run(play, clock=clock)


def test_output_that_is_deleted_at_the_commit_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchOutput, "needed_from", lambda self, now: self._ends[-1][0] if self._ends else 0)
    with pytest.raises(AssertionError, match="was deleted up to"):
        test_the_log_of_a_driven_region_keeps_what_a_batch_may_read_and_deletes_the_rest(RetentionRule())
