"""Random histories of one input and the regions that read it, and the planted bugs that they find."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from checkpoint import limits
from checkpoint.chains import consumer_register
from checkpoint.chains.input_log import InputLog
from checkpoint.core.records import consumers
from checkpoint.core.records.manifest import decode_checkpoint, keep
from dos_protocol.errors import CorruptDataError
from journal import NO_FLOOR, ChainWriter, Op, parse_segment_name
from journal.core.record import decode_all
from tests.checkpoint.test_input_trimming import (
    model_with,
    read_and_commit,
)
from tests.checkpoint.test_input_trimming import (
    test_restarts_without_batches_leave_the_number_of_the_last_batch_and_few_segments as restarts,
)

SEEDS = 10
STEPS = 40


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 200)


# --- random histories ---------------------------------------------------------------------------------------


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
    patch.setattr(consumer_register, "need_of", lambda kept, *args: need(kept[-1:], *args))


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

    def without(kept: Any, *args: Any) -> int:
        held = set(kept[-1].savepoints.values()) if kept else set()
        return need([checkpoint for checkpoint in kept if checkpoint.number not in held], *args)

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

    def lenient(kept: Any, sources: Any, split: str, _output: Any) -> int:
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
    for seed in range(SEEDS):
        try:
            trio.run(play, random.Random(seed))
        except (AssertionError, CorruptDataError):
            return
    pytest.fail("not found")


def test_trimming_the_last_batch_would_lose_the_place_of_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug, found by a producer that is started again and again."""
    forgets_the_last_batch(monkeypatch)
    with pytest.raises(AssertionError, match="it continues after the last batch"):
        trio.run(restarts)


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
