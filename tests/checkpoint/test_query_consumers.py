"""Streaming queries of Spark as consumers of an input: the pure core, random histories with crashes and old
checkpoints, and the planted bugs that they find.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from checkpoint import limits
from checkpoint.chains import consumer_register
from checkpoint.chains.consumer_register import read_register
from checkpoint.core.records import consumers
from checkpoint.core.records import consumers as registered_queries
from checkpoint.core.records.consumers import (
    QueryPosition,
    Register,
    RegisteredQuery,
    continued_later,
    continued_query,
    decode_register,
    encode_register,
    new_query,
    published,
    with_query,
    without_consumer,
)
from checkpoint.errors import ConsumerRefusedError
from spark_integration.errors import DataLossError
from spark_integration.reading.planning import StreamPlanner
from tests.checkpoint.query_model import QueryModel
from tests.checkpoint.test_input_trimming import model_with, read_and_commit
from tests.checkpoint.trim_model import REGISTER, TrimModel
from tests.support.parts import with_long

SEEDS, SEEDS_LONG = range(3), range(3, 200)
STEPS = 40


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "query_publish_s", 0.0)


# --- the pure core ---------------------------------------------------------------------------------------


def at(at_ms: int, **splits: int) -> QueryPosition:
    return QueryPosition(at_ms=at_ms, splits=splits)


def test_a_query_needs_the_lowest_of_its_retained_positions() -> None:
    query = new_query(None, "report", "s1", 1_000)
    assert (consumers.query_need(query, "p"), query.needs_everything) == (0, True)
    for now_ms, position in ((2_000, 10), (5_000, 20), (9_000, 30), (9_500, 35), (14_000, 40)):
        query = published(query, "report", "s1", {"p": position}, now_ms, 8.0)
    # 35 came within a quarter of the 8 s after 30. 20 is the newest one that is at least 8 s old.
    assert query.positions == (at(5_000, p=20), at(9_000, p=30), at(14_000, p=40))
    assert [consumers.query_need(query, split) for split in ("p", "other")] == [20, 0]
    assert (query.read("p"), query.needs_everything) == (40, False)
    assert published(query, "report", "s1", {"p": 50}, 14_000, 0.0).positions == (at(14_000, p=50),)


def test_a_clock_that_goes_back_keeps_more_and_not_for_ever() -> None:
    query = published(new_query(None, "q", "s", 1_000_000), "q", "s", {"p": 1}, 1_000_000, 8.0)
    for second in range(60):
        query = published(query, "q", "s", {"p": 2 + second}, 1_000 * second, 8.0)
        assert len(query.positions) <= 9
        assert consumers.query_need(query, "p") <= 2 + second
    assert consumers.query_need(query, "p") >= 40


def test_a_query_that_continues_below_what_is_registered_lowers_it_and_never_raises_it() -> None:
    known = RegisteredQuery(session="s1", since_ms=1, positions=(at(5, p=50, r=7), at(9, p=90, r=9)))
    same = continued_query(known, "s2", {"p": 90, "r": 9}, 10)
    assert (same.positions, same.session, same.since_ms) == (known.positions, "s2", 1)
    assert continued_query(known, "s2", {"p": 60, "r": 7}, 10).positions == known.positions
    lower = continued_query(known, "s2", {"p": 40, "r": 9}, 10)
    assert [consumers.query_need(lower, split) for split in "pr"] == [40, 7]
    assert consumers.query_need(continued_query(known, "s2", {"p": 90}, 10), "r") == 0, "it has not read r"
    assert continued_query(None, "s2", {"p": 90}, 10).positions == (at(10, p=90),)
    begun = continued_query(known, "s2", {}, 10)  # where it continues follows from the rows
    assert consumers.query_need(begun, "p") == 0
    assert continued_later(begun, known, "q", "s2", {"p": 90, "r": 9}, 11) == same
    with pytest.raises(ConsumerRefusedError, match="registered by another process"):
        continued_later(begun, known, "q", "s1", {"p": 90, "r": 9}, 11)


def test_two_queries_with_one_name_are_refused_before_one_releases_what_the_other_needs() -> None:
    first = new_query(None, "report", "s1", 1)
    second = new_query(first, "report", "s2", 2)  # the first may have died before it planned anything
    with pytest.raises(ConsumerRefusedError, match="registered by another process") as raised:
        published(second, "report", "s1", {"p": 10}, 3, 1.0)
    assert "its own name" in str(raised.value)
    ran = published(second, "report", "s2", {"p": 10}, 3, 1.0)
    assert new_query(ran, "report", "s3", 4).needs_everything, "nothing that it read is released yet"
    ran = published(ran, "report", "s2", {"p": 20}, 2_000, 1.0)
    with pytest.raises(ConsumerRefusedError, match="this query has no checkpoint"):
        new_query(ran, "report", "s3", 4)
    with pytest.raises(ConsumerRefusedError, match="was removed from the consumers"):
        published(None, "report", "s1", {"p": 10}, 3, 1.0)


def test_the_bytes_of_a_register_with_queries_and_without_are_these() -> None:
    empty = Register()
    query = RegisteredQuery(session="5e", since_ms=17, positions=(at(17), at(18, till=4711)))
    register = with_query(empty, "report", query)
    text = encode_register(register)
    assert text == (
        b'{"version":1,"consumers":{},"rule":null,"queries":{"report":{"session":"5e","since_ms":17,'
        b'"positions":[{"at_ms":17,"splits":{}},{"at_ms":18,"splits":{"till":4711}}]}}}'
    )
    assert decode_register([text], where="d", at=9) == register
    assert encode_register(empty) == b'{"version":1,"consumers":{},"rule":null}'
    assert without_consumer(register, "query:report") == empty
    for wrong in ("query:other", "report"):
        with pytest.raises(ConsumerRefusedError, match=r"is not registered; registered are: query:report"):
            without_consumer(register, wrong)


# --- histories -------------------------------------------------------------------------------------------


class History:
    """One input, a region and two queries; each method is a step."""

    def __init__(self, model: TrimModel, rng: random.Random) -> None:
        self.model, self.rng = model, rng
        self.queries: dict[str, QueryModel] = {}
        self.names = 0
        self.slots = rng.choice([[("q", 0.0)], [("r", 8.0)], [("q", 0.0), ("r", 8.0)]])

    def query(self) -> QueryModel:
        slot, retain_s = self.rng.choice(self.slots)
        if slot not in self.queries:
            self.names += 1
            self.queries[slot] = QueryModel(self.model, f"{slot}{self.names}", retain_s)
        return self.queries[slot]

    async def send(self) -> None:
        for _ in range(self.rng.choice([1, 2, 4])):
            self.model.now_ms += self.rng.choice([100, 500])
            await self.model.send()

    async def run(self) -> None:
        query = self.query()
        for _ in range(self.rng.choice([1, 1, 3])):
            await query.batch(self.rng.choice([1, 2, 1_000]))

    async def crash(self) -> None:
        await self.query().batch(
            self.rng.choice([1, 2, 1_000]), self.rng.choice(["recorded", "told", "read"])
        )

    async def back_up(self) -> None:
        self.query().back_up()

    async def old_checkpoint(self) -> None:
        query = self.query()
        if query.backups and not await query.restore(self.rng.choice(query.backups)):
            await query.crash()  # rows are gone: it failed, and said so
            self.queries = {slot: one for slot, one in self.queries.items() if one is not query}

    async def wait(self) -> None:
        self.model.now_ms += self.rng.choice([2_000, 8_000])

    async def trim(self) -> None:
        await read_and_commit(self.model, "a", checkpoints=2)
        await self.model.trim()
        await self.model.trim()

    async def trim_step(self) -> None:
        await self.model.trim_step()

    async def new_producer(self) -> None:
        await self.model.open()

    async def check(self) -> None:
        await self.model.check()
        for query in self.queries.values():
            await query.check()

    async def end(self) -> None:
        for query in self.queries.values():
            await query.crash()


async def play(rng: random.Random) -> None:
    """A random history, checked after each step."""
    history = History(await model_with(1, "a"), rng)
    steps = [
        (6, history.send),
        (8, history.run),
        (6, history.crash),
        (4, history.back_up),
        (3, history.old_checkpoint),
        (3, history.wait),
        (1, history.trim_step),
        (8, history.trim),
        (1, history.new_producer),
    ]
    try:
        for _ in range(STEPS):
            await rng.choices([work for _, work in steps], [weight for weight, _ in steps])[0]()
            await history.check()
    finally:
        await history.end()


# EVIDENCE-OF: P-6
@pytest.mark.parametrize("seed", with_long(SEEDS, SEEDS_LONG))
def test_whatever_happens_spark_can_replay_from_its_checkpoint_and_from_recent_copies(seed: int) -> None:
    trio.run(play, random.Random(seed))


def publishes_the_planned_end(patch: pytest.MonkeyPatch) -> None:
    """Publishes the end of the newest planned micro-batch."""
    latest = StreamPlanner.latest

    async def planned(self: StreamPlanner, *args: Any) -> Any:
        end = await latest(self, *args)
        await self.committed(end)
        return end

    patch.setattr(StreamPlanner, "latest", planned)


def publishes_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Publishes the end of a micro-batch when it runs."""
    partitions = StreamPlanner.partitions

    async def run(self: StreamPlanner, start: Any, end: Any) -> Any:
        await self._register(start)
        await self.committed(end)
        return await partitions(self, start, end)

    patch.setattr(StreamPlanner, "partitions", run)


def registers_after_the_first_read(patch: pytest.MonkeyPatch) -> None:
    """Registers when the first micro-batch is committed."""
    registers, committed = StreamPlanner._register, StreamPlanner.committed

    async def late(self: StreamPlanner, end: Any) -> None:
        await registers(self, end)
        await committed(self, end)

    async def not_yet(self: StreamPlanner, start: Any) -> None:
        del self, start

    patch.setattr(StreamPlanner, "_register", not_yet)
    patch.setattr(StreamPlanner, "committed", late)


def retains_only_the_last_position(patch: pytest.MonkeyPatch) -> None:
    """Ignores that the checkpoint may lose its newest batches."""
    patch.setattr(consumer_register, "published", lambda *args: registered_queries.published(*args[:5], 0.0))


def ignores_an_older_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Keeps what is registered when a query continues below it."""

    def keeps(known: Any, session: str, *args: Any) -> Any:
        if known is None:
            return continued_query(known, session, *args)
        return RegisteredQuery(session=session, since_ms=known.since_ms, positions=known.positions)

    patch.setattr(consumer_register, "continued_query", keeps)


# --- stories: what each planted bug loses -------------------------------------------------------------


async def trimmed(model: TrimModel) -> None:
    """Another consumer has read everything, and what no consumer needs is deleted."""
    await read_and_commit(model, "a", checkpoints=2)
    await model.trim()
    await model.trim()


async def killed(step: str, batches: int) -> QueryModel:
    """A query that was killed after a step of a micro-batch; then the input is trimmed."""
    model = await model_with(12, "a")
    query = QueryModel(model, "report")
    for _ in range(batches):
        await query.batch(2)
    await query.batch(2, crash=step)
    await trimmed(model)
    return query


async def killed_before_the_run() -> QueryModel:
    return await killed("recorded", 2)


async def killed_before_the_commit() -> QueryModel:
    return await killed("read", 2)


async def killed_in_the_first_batch() -> QueryModel:
    return await killed("read", 0)


async def a_recent_copy() -> QueryModel:
    model = await model_with(12, "a")
    query = QueryModel(model, "report", retain_s=12.0)
    for number in range(5):
        await query.batch(2)
        if number == 2:
            query.back_up()
        model.now_ms += 3_000
    await trimmed(model)
    return query


async def an_old_copy_whose_rows_are_still_there() -> QueryModel:
    model = await model_with(12, "a")
    query = QueryModel(model, "report")
    await query.batch(2)
    query.back_up()
    for _ in range(3):
        await query.batch(2)
    assert await query.restore(query.backups[0], crash="recorded")
    await trimmed(model)
    return query


STORIES = [
    (killed_before_the_run, publishes_the_planned_end),
    (killed_before_the_commit, publishes_before_the_commit),
    (killed_in_the_first_batch, registers_after_the_first_read),
    (a_recent_copy, retains_only_the_last_position),
    (an_old_copy_whose_rows_are_still_there, ignores_an_older_checkpoint),
]


async def told(story: Callable[[], Awaitable[QueryModel]]) -> None:
    query = await story()
    try:
        await query.check()
        await query.batch(2)
        await query.check()
    finally:
        await query.crash()


@pytest.mark.parametrize(("story", "bug"), STORIES)
def test_each_story_loses_nothing_and_loses_rows_with_its_planted_bug(
    story: Callable[[], Awaitable[QueryModel]],
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trio.run(told, story)
    bug(monkeypatch)
    with pytest.raises((AssertionError, DataLossError), match=r"was trimmed|is gone|began at"):
        trio.run(told, story)


@pytest.mark.trio
async def test_a_query_that_registers_between_release_and_deletion_loses_nothing() -> None:
    model = await model_with(20, "first")
    await read_and_commit(model, "first", checkpoints=3)
    assert await model.trim_step(), "released, and nothing deleted yet"
    query = QueryModel(model, "late")
    await query.batch(2)
    await model.trim()
    await model.trim()
    for _ in range(3):
        await query.batch(2)
        await query.check()
    assert query.begin is not None
    assert query.commits == 2, "it began with the oldest row that was not released"
    await query.crash()


@pytest.mark.trio
async def test_a_stopped_query_keeps_its_rows_and_the_input_shrinks_when_it_continues() -> None:
    model = await model_with(12, "fast")
    query = QueryModel(model, "report", retain_s=5.0)
    for _ in range(4):
        await query.batch(2)
    await query.crash()
    await read_and_commit(model, "fast", checkpoints=3)
    await model.trim()
    await model.trim()
    stopped_at = model.segments()[0]
    assert stopped_at == 0, "its newest position has not been retained for long enough"
    model.now_ms += 5_000
    for _ in range(3):
        await query.batch(2)
        model.now_ms += 1_000
    await model.trim()
    await model.trim()
    assert 0 < model.segments()[0] < query.offsets[-1]["till"].size
    await query.check()
    register = await read_register(model.store, REGISTER)
    assert register.queries["report"].session == "report2"
    await query.crash()
