"""Inputs are trimmed to what retained checkpoints of registered regions need, and not further: single rules,
random histories, and the planted bugs that they find.
"""

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from checkpoint import limits
from checkpoint.chains import consumer_register
from checkpoint.chains.consumer_register import change_register
from checkpoint.chains.input_log import InputLog
from checkpoint.core.records import consumers
from checkpoint.core.records.consumers import Register, RetentionRule
from checkpoint.core.records.manifest import SplitPosition, decode_checkpoint, keep
from checkpoint.errors import InputTrimmedError
from dos_protocol.errors import CorruptDataError
from journal import NO_FLOOR, ChainWriter, Op, parse_segment_name
from journal.core.record import decode_all
from tests.checkpoint.trim_model import DIRECTORY, REGISTER, PatientHost, TrimModel
from tests.support.parts import with_long
from tests.support.planted_source import is_found


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 200)


async def model_with(batches: int, *regions: str) -> TrimModel:
    model = TrimModel()
    await model.open()
    for name in regions:
        await model.region(name)
    for _ in range(batches):
        await model.send()
    return model


async def read_and_commit(model: TrimModel, name: str, pieces: int = 1_000, checkpoints: int = 1) -> None:
    region = await model.region(name)
    await region.read(pieces)
    for _ in range(checkpoints):
        await region.checkpoint()


# --- what is deleted, and what is not --------------------------------------------------------------------


@pytest.mark.trio
async def test_an_input_without_a_consumer_is_not_trimmed() -> None:
    model = await model_with(20)
    await model.trim()
    assert model.segments()[0] == 0
    assert len(await model.read_from(SplitPosition(0))) == 20


# EVIDENCE-OF: P-6
@pytest.mark.trio
async def test_the_oldest_retained_checkpoint_of_the_slowest_region_decides() -> None:
    model = await model_with(20, "fast", "slow")
    await read_and_commit(model, "fast", checkpoints=3)
    await model.trim()
    assert model.segments()[0] == 0, "the other region has committed nothing: it needs everything"
    await read_and_commit(model, "slow", 10)
    await model.trim()
    await model.trim()
    assert 0 < model.segments()[0] < model.ends[9]
    first = model.segments()[0]
    await read_and_commit(model, "slow")
    await model.trim()
    await model.trim()
    assert model.segments()[0] == first, "the checkpoint at row 10 is retained still"
    await read_and_commit(model, "slow")
    await model.trim()
    await model.trim()
    assert first < model.segments()[0] < model.ends[-1]
    await model.check()


@pytest.mark.trio
async def test_a_savepoint_keeps_what_it_needs_and_its_end_frees_it() -> None:
    model = await model_with(4, "region")
    await read_and_commit(model, "region")
    region = await model.region("region")
    await region.savepoint("before")
    for _ in range(20):
        await model.send()
    await read_and_commit(model, "region", checkpoints=4)
    await model.trim()
    await model.trim()
    assert model.segments()[0] < model.ends[3]
    await model.check()
    await region.drop("before")
    await region.checkpoint()
    await model.trim()
    await model.trim()
    assert model.segments()[0] > model.ends[3]
    await model.check()


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("checkpoints", with_long([240], [5_000], [20_000]))
def test_sizes_and_numbers_of_objects_stay_flat_over_many_checkpoints(checkpoints: int) -> None:
    """Input, manifest and register: the second half of the run needs no more than the first one."""
    trio.run(soak, checkpoints)


async def soak(checkpoints: int) -> None:
    model = await model_with(0, "region", "other")
    most: list[dict[str, tuple[int, int]]] = [{}, {}]
    for number in range(checkpoints):
        await model.send()
        for name in ("region", "other"):
            await read_and_commit(model, name)
        if number % 20 == 5:  # what a person and a crash do now and then
            await (await model.region("region")).savepoint("now")
        elif number % 20 == 12:
            await (await model.region("region")).drop("now")
        elif number % 20 == 16:
            await model.open()
            await (await model.region("other")).open()
            await (await model.region("other")).register()
        await model.trim()
        if number >= checkpoints // 6:
            half = most[2 * number >= checkpoints]
            for directory in model.store.servers[0].objects:
                size, objects = half.get(directory, (0, 0))
                half[directory] = (
                    max(size, model.store.bytes_of(directory)),
                    max(objects, len(model.store.servers[0].objects[directory])),
                )
    assert most[0].keys() == most[1].keys()
    for directory, (size, objects) in most[1].items():
        assert size <= 1.25 * most[0][directory][0], directory
        assert objects <= 1.25 * most[0][directory][1] + 1, directory
    assert most[1][DIRECTORY][0] < 0.5 * model.log.end.size
    await model.check()


@pytest.mark.trio
async def test_restarts_without_batches_leave_the_number_of_the_last_batch_and_few_segments() -> None:
    model = await model_with(3, "region")
    await read_and_commit(model, "region", checkpoints=3)
    for _ in range(10):
        await model.open()
        await model.trim()
    await model.check()
    await model.send()
    await read_and_commit(model, "region", checkpoints=3)
    await model.trim()
    await model.trim()
    assert len(model.segments()) < 6
    await model.open()
    await model.check()


@pytest.mark.trio
async def test_a_region_that_registers_between_release_and_deletion_loses_nothing() -> None:
    model = await model_with(20, "first")
    await read_and_commit(model, "first", checkpoints=3)
    assert await model.trim_step(), "released, and nothing deleted yet"
    await model.region("second")
    assert model.segments()[0] == 0
    await model.trim()
    assert model.segments()[0] == 0
    await model.check()
    await model.open()  # the next producer finds the release, and reads the register, too
    await model.trim()
    assert model.segments()[0] == 0
    await model.check()
    for name in ("first", "second"):
        await read_and_commit(model, name, checkpoints=3)
    await model.trim()
    await model.trim()
    assert model.segments()[0] > 0
    await model.check()


@pytest.mark.trio
async def test_a_producer_that_dies_between_release_and_deletion_is_continued_by_the_next() -> None:
    model = await model_with(20, "region")
    await read_and_commit(model, "region", checkpoints=3)
    assert await model.trim_step()
    await model.open()
    assert model.segments()[0] == 0
    await model.trim_step()
    assert model.segments()[0] > 0
    await model.check()


@pytest.mark.trio
async def test_a_member_that_was_unavailable_is_trimmed_when_it_is_back() -> None:
    model = await model_with(20, "region")
    away = model.store.servers[2]
    await read_and_commit(model, "region", checkpoints=3)
    away.up = False
    await model.trim()
    assert "input.0000000000000001.0000000000000000" in away.objects[DIRECTORY]
    away.up = True
    model.log._claim.join(away)
    assert model.segments()[0] > 0
    await model.check()


# --- limits ----------------------------------------------------------------------------------------------


async def rule(model: TrimModel, **limit: Any) -> None:
    await change_register(
        PatientHost(model.store),
        REGISTER,
        lambda register: Register(
            consumers=register.consumers, rule=RetentionRule(set_by="ops@host", set_ms=1, **limit)
        ),
    )


@pytest.mark.trio
async def test_a_limit_of_size_deletes_without_consumers_and_a_reader_below_it_gets_the_reason() -> None:
    model = await model_with(20)
    await rule(model, bytes_max=300)
    await model.trim()
    await model.trim()
    first = model.segments()[0]
    assert 0 < first <= model.log.end.size - 300
    with pytest.raises(InputTrimmedError) as raised:
        await model.read_from(SplitPosition(0))
    said = str(raised.value)
    assert f"the bytes from 0 to {first} of producer 'till' of input 'orders' of 'shop' were trimmed" in said
    assert "the retention rule is at most 300 bytes, set by ops@host" in said
    assert 'begin="retained"' in said
    found = await model.read_from(SplitPosition(0), from_retained=True)
    assert found == model.rows[-len(found) :]
    assert len(found) >= 2


@pytest.mark.trio
async def test_a_limit_of_age_deletes_old_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TrimModel()
    monkeypatch.setattr("checkpoint.chains.input_log.wall_time_ms", lambda: model.now_ms)
    await model.open()
    await rule(model, age_max_s=10.0)
    for _ in range(20):
        model.now_ms += 1_000
        await model.send()
    await model.trim()
    await model.trim()
    found = await model.read_from(SplitPosition(0), from_retained=True)
    assert 10 <= len(found) < 14
    model.now_ms += 1_000_000
    await model.trim()
    await model.trim()
    assert 0 < len(await model.read_from(SplitPosition(0), from_retained=True)) < 4, "the last segment stays"
    planner = model.log._trimmer._planner
    assert len(planner._times) <= len(model.segments()), "the times of deleted segments are forgotten"
    await model.open()


# --- random histories -------------------------------------------------------------------------------------


SEEDS = 10
STEPS = 40


# --- random histories ------------------------------------------------------------------------------------


async def play(rng: random.Random) -> None:
    """A random history of one input and its regions, checked after each step of trimming."""
    model = await model_with(1, "a")
    away = model.store.servers[2]

    async def send() -> None:
        for _ in range(rng.choice([1, 2, 4])):
            await model.send()

    async def lost_vote(name: str) -> None:
        region = await model.region(name)
        await region.read(1_000)
        await region.vote()
        await model.trim()
        away.up = False
        await region.open()  # without the member that has the record: it is not committed, and never will be
        await model.check()
        away.up = True

    async def read_and_cut(region: Any) -> None:
        await region.read(rng.choice([2, 5, 1_000]))
        await region.checkpoint()

    def of(name: str, work: Callable[[Any], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await work(await model.region(name, rng.choice([2, 3])))

        return run

    for _ in range(STEPS):
        name = rng.choice("aaabbc")
        steps: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (6, send),
            (8, of(name, read_and_cut)),
            (2, of(name, lambda region: region.checkpoint())),
            (1, of(name, lambda region: region.open())),
            (2, of(name, lambda region: region.savepoint(rng.choice("xy")))),
            (1, of(name, lambda region: region.drop(rng.choice("xy")))),
            (2, lambda name=name: lost_vote(name)),  # type: ignore[misc]
            (3, model.trim_step),
            (6, model.trim),
            (1, model.open),
        ]
        weights = [weight for weight, _ in steps]
        await rng.choices([work for _, work in steps], weights)[0]()
        await model.check()


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_every_retained_checkpoint_can_be_read_from(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    trio.run(play, random.Random(seed))


def latest_only(patch: pytest.MonkeyPatch) -> None:
    """Trims to the latest retained checkpoint, not to the oldest."""
    need = consumers.need_of

    def of_latest(kept: Any, *args: Any, region: str) -> int | None:
        return need(kept[-1:], *args, region=region)

    patch.setattr(consumer_register, "need_of", of_latest)


def before_the_release(patch: pytest.MonkeyPatch) -> None:
    """Counts the newest record of a manifest that any member has: a release that is not durable."""

    async def newest(store: Any, region: str) -> Any:
        directory, kept = f"{region}.coord", ()
        names = {n: server for server in store.servers for n in server.objects.get(directory, {})}
        order = sorted(names, key=lambda name: parse_segment_name(name).order)  # type: ignore[union-attr]
        for name in order:
            copies = [bytes(server.objects.get(directory, {}).get(name, b"")) for server in store.servers]
            for _, record in decode_all(max(copies, key=len))[0]:
                if record.op is Op.CHECKPOINT:
                    kept = keep(kept, decode_checkpoint(record.flags, record.ints, record.strings[0]))
        return kept

    patch.setattr(consumer_register, "retained_checkpoints", newest)


def one_consumer(patch: pytest.MonkeyPatch) -> None:
    """Ignores all consumers but one."""
    needs = consumer_register.needs_of

    async def fewer(*args: Any) -> Any:
        found = await needs(*args)
        return dict(sorted(found.items())[-1:])

    patch.setattr(consumer_register, "needs_of", fewer)


def savepoints_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Counts the checkpoints that are retained by their number, not those of savepoints."""
    need = consumers.need_of

    def without(kept: Any, *args: Any, region: str) -> int | None:
        held = set(kept[-1].savepoints.values()) if kept else set()
        return need([one for one in kept if one.number not in held], *args, region=region)

    patch.setattr(consumer_register, "need_of", without)


def deletes_at_once(patch: pytest.MonkeyPatch) -> None:
    """Deletes with the release, without reading the register again."""
    release = ChainWriter.release

    async def at_once(self: ChainWriter, floor: Any, *, collect: bool = True) -> None:
        del collect
        await wait_for_newcomers()
        await release(self, floor)

    patch.setattr(ChainWriter, "release", at_once)


newcomers: list[Callable[[], Awaitable[Any]]] = []


async def wait_for_newcomers() -> None:
    while newcomers:
        await newcomers.pop()()


def forgets_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """Trims the segment with the last batch, too, if every consumer has read it."""
    chain = InputLog.chain.fget
    assert chain is not None
    patch.setattr(InputLog, "chain", property(lambda self: chain(self)._replace(last_end=1 << 62)))
    patch.setattr(
        consumers,
        "_containing",
        lambda chain, position: max((one for one in chain.segments if one[1] <= position), default=NO_FLOOR),
    )


def a_position_not_read_counts_as_read(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that has not read a producer yet does not count."""

    def lenient(kept: Any, sources: Any, split: str, _output: Any, *, region: str) -> int:
        del region
        parts = [part for checkpoint in kept for part in checkpoint.workers.values()]
        found = [part.sources.get(one, {}).get(split) for part in parts for one in sources]
        return min((at.position for at in found if at is not None), default=0)

    patch.setattr(consumer_register, "need_of", lenient)


@pytest.mark.parametrize(
    "bug",
    [
        latest_only,
        before_the_release,
        one_consumer,
        savepoints_do_not_count,
        a_position_not_read_counts_as_read,
    ],
)
def test_the_random_histories_find_planted_bugs(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    bug(monkeypatch)
    runs = (partial(trio.run, play, random.Random(seed)) for seed in range(SEEDS))
    assert is_found(runs, AssertionError, CorruptDataError)


def test_trimming_the_last_batch_would_lose_the_place_of_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug, found by a producer that is started again and again."""
    forgets_the_last_batch(monkeypatch)
    with pytest.raises(AssertionError, match="it continues after the last batch"):
        trio.run(test_restarts_without_batches_leave_the_number_of_the_last_batch_and_few_segments)


@pytest.mark.trio
async def test_deletion_with_the_release_would_lose_what_a_newcomer_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug: between reading the register and deleting, a region registers."""
    deletes_at_once(monkeypatch)
    model = await model_with(20, "first")
    await read_and_commit(model, "first", checkpoints=3)
    newcomers.append(lambda: model.region("second"))
    await model.trim_step()
    with pytest.raises(AssertionError, match="second needs 0"):
        await model.check()
