"""A worker that stands at the checkpoint to restore continues with the state that it has, and reads none.

`play_with_trouble` and `OneThreadRegion` do the same at random in the tests of all operators.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from checkpoint import CopyAhead, Restore, TakenPart, Vote, WorkerCheckpoint
from checkpoint.chains.state_store import StateStore, StoredStateBlock
from checkpoint.core.records.layout import even_layout, rebalanced
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import worker_directory
from dataflow import CallSink, FileSource, Graph, InputSource, Stream, Sum
from dataflow.testing import Trial
from dataflow.worker.circuit import Circuit
from dataflow.worker.layout_change import CopiedState, LayoutChange, is_of_vote, these
from dos_client import Store
from journal import Position
from tests.checkpoint.manifest_samples import numbered_checkpoint
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_rescaling import TEN_SECONDS, WORDS, dealt, timed
from tests.dataflow.trials import multiset, row
from tests.journal.memory_store import MemoryStore

KEYED: dict[str, Callable[[Stream], Stream]] = {
    "aggregate": lambda rows: rows.aggregate("kept", x=Sum("x")),
    "dedup": lambda rows: rows.dedup("kept"),
    "window": lambda rows: rows.aggregate("kept", TEN_SECONDS, x=Sum("x")),
    "dedup by window": lambda rows: rows.dedup("kept", TEN_SECONDS),
    "top_k": lambda rows: rows.top_k("kept", TEN_SECONDS, 3, by="x"),
}
"""An operator that continues as it is, or whose tables do."""


def of_keys(operator: Callable[[Stream], Stream]) -> Graph:
    graph, rows = timed()
    operator(rows.key_by("by", "key")).sink("out", CallSink(print))
    return graph


def of_state(counters: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: counters["kept"][name] for name in counters["kept"].keys() - {"busy_us", "state_bytes"}}


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("operator", KEYED.values(), ids=KEYED)
def test_a_state_that_is_kept_is_as_one_that_is_read(
    operator: Callable[[Stream], Stream], old: int, new: int
) -> None:
    """Also in the checkpoint of the new layout, which a crash restores."""
    trials = []
    for kept in (True, False):
        trial = Trial(of_keys(operator), workers=old)
        trial.step({"rows": dealt([row(n / 4, WORDS[n % 23], float(n)) for n in range(60)])}, checkpoint=True)
        if not kept:
            trial.step({"rows": dealt([row(2, "left behind")])})
        with mock.patch.object(Circuit, "hold", autospec=True, side_effect=Circuit.hold) as held:
            trial.rescale(new)
        assert held.call_count == (min(old, new) if kept else 0)
        trial.step({"rows": dealt([row(9 + n / 4, WORDS[n % 31], float(n)) for n in range(60)])})
        counters = trial.counters()  # of a restored checkpoint they begin at 0, so the same rows follow
        assert trial.crash() == 1
        trial.step({"rows": dealt([row(9 + n / 4, WORDS[n % 31], float(n)) for n in range(60)])})
        assert list(map(of_state, trial.counters())) == list(map(of_state, counters))
        trial.step({}, end=True)
        trials.append(trial)
    assert multiset(trials[0].rows("out")) == multiset(trials[1].rows("out"))
    assert trials[0].rows("out")


def at_rest(folder: Path) -> OneThreadRegion:
    """A region of one worker that is paused at a committed checkpoint, and has more input."""
    (folder / "words").write_text("".join(f"w{number % 7}\n" for number in range(100)))
    graph = Graph("g")
    words = graph.source("words", FileSource(folder / "*"))
    words.key_by("by", "line").count("counts").sink("out", CallSink(print))
    region = OneThreadRegion(graph, 1, lambda _: 0)
    region.restore()
    run = region.sides[0].run
    assert run is not None
    while region.sides[0].shared.step < 2:
        region.turn()
    run.pause(1)
    region.request_checkpoint(all_workers=True)
    while region.turn():
        pass
    assert region.checkpoint is not None
    assert not region.exhausted()
    return region


def test_a_worker_at_rest_at_its_checkpoint_keeps_its_state(tmp_path: Path) -> None:
    region = at_rest(tmp_path)
    region.restore()
    assert region.states_kept == 1
    run = region.sides[0].run
    assert run is not None
    assert not run.reads
    region.close()


def test_a_worker_that_has_made_a_step_since_reads_its_state(tmp_path: Path) -> None:
    """Its tables have rows that are made again."""
    region = at_rest(tmp_path)
    step, run = region.sides[0].shared.step, region.sides[0].run
    assert run is not None
    run.pause(0)
    while region.sides[0].shared.step == step:
        region.turn()
    region.restore()
    assert region.states_kept == 0
    region.close()


@pytest.mark.parametrize(
    "other",
    [{"voted": False}, {"checkpoint": 7}, {"uids": {"_counts": "_1f-counts"}}],
    ids=["another vote", "another checkpoint", "other uids"],
)
def test_a_worker_keeps_only_the_state_that_is_to_be_restored(
    tmp_path: Path, other: dict[str, object]
) -> None:
    region = at_rest(tmp_path)
    run = region.sides[0].run
    assert run is not None
    order = replace(region.order_of(0), voted=True)
    assert run.hold(replace(order, **other)) is None  # type: ignore[arg-type]
    assert run.hold(order) is not None
    region.close()


def test_a_checkpoint_is_that_of_a_vote_byte_for_byte() -> None:
    """A worker that was reset votes again for the same number, with other bytes."""
    at, later = Position(3, 100, 7), Position(3, 100, 8)
    part = WorkerCheckpoint(state=at, steps=at)
    checkpoint = numbered_checkpoint(4, step=9, workers={0: part}, incarnation=3)
    order = Restore(
        job="g",
        incarnation=4,
        epoch=4,
        worker=0,
        checkpoint=4,
        restore=checkpoint,
        peers=(),
        layout=even_layout(1),
    )
    vote = Vote(job="g", worker=0, checkpoint=4, step=9, positions=part)
    assert is_of_vote(order, vote)
    assert not is_of_vote(order, None)
    for other in (WorkerCheckpoint(state=later, steps=at), WorkerCheckpoint(state=at, steps=later)):
        assert not is_of_vote(order, Vote(job="g", worker=0, checkpoint=4, step=9, positions=other))
    assert not is_of_vote(order, Vote(job="g", worker=0, checkpoint=3, step=9, positions=part))


def test_an_operator_that_reads_a_broadcast_table_is_opened_again() -> None:
    """It would read the table of the circuit before."""
    graph = Graph("g")
    names = graph.broadcast_table("names", graph.source("n", InputSource("n", "id long, name string")), "id")
    rows = graph.source("rows", InputSource("rows", "id long"))
    rows.map("named", lambda row, names: {"id": len(names)}, broadcast=names, schema="id long").sink(
        "out", CallSink(print)
    )
    trial = Trial(graph)
    trial.step({"n": [{"id": 1, "name": "a"}]}, checkpoint=True)
    trial.rescale(2)
    trial.step({"n": [{"id": 2, "name": "b"}]})
    trial.step({"rows": [{"id": 1}]})
    assert trial.rows("out") == [{"id": 2}]


# --- loaded ahead -------------------------------------------------------------------------------------------

REGION = "g"


@pytest.mark.trio
@pytest.mark.parametrize("then", ["nothing", "changes", "a snapshot", "other parts"])
async def test_a_worker_that_joins_gets_each_block_once_ahead_or_when_it_is_ordered(then: str) -> None:
    memory, copies = MemoryStore(), CopiedState()
    ahead: list[bytes] = []

    async def load(part: TakenPart, block: StoredStateBlock) -> None:
        assert part.worker == 0
        ahead.append(block.data)

    async def report(copied: int, total: int) -> None:
        """Nobody waits for it."""

    plan, layout = of_keys(KEYED["dedup"]).plan(), rebalanced(even_layout(1), range(2))
    state = await StateStore.open(
        memory.claim(1, directory=worker_directory(REGION, 0)), version=0, at=None, generation=1
    )
    at = await state.commit(1, [("kept", b"1"), ("kept", b"2")])
    copying = CopyAhead(
        job=REGION,
        incarnation=1,
        epoch=1,
        checkpoint=1,
        worker=1,
        layout=layout,
        restore=last_at(at),
        uids={},
    )
    change = LayoutChange.of(copying, plan)
    assert change is not None
    await copies.copy(cast("Store", memory), copying, change, report, load)
    assert ahead == [b"1", b"2"]
    if then == "changes":
        at = await state.commit(2, [("kept", b"3")])
    elif then == "a snapshot":
        await state.snapshot([("kept", b"all")])
        at = await state.commit(2, [("kept", b"3")])
    order = Restore(
        job=REGION, incarnation=2, epoch=2, checkpoint=state.version, worker=1, restore=last_at(at), peers=(),
        layout=layout,
    )  # fmt: skip
    if then == "other parts":
        change = change._replace(
            share=replace(change.share, parts=(change.share.parts[0]._replace(ranges=()),))
        )
    await state.aclose()

    since = await copies.since_loaded(memory, order, change)
    assert since is None
    read = [block.data async for _, block in copies.restored(memory, order, these, change, since)]
    assert (copies.loaded is not None, read) == {
        "nothing": (True, []),
        "changes": (True, [b"3"]),
        "a snapshot": (False, [b"all", b"3"]),
        "other parts": (False, [b"1", b"2"]),
    }[then]


def last_at(at: Position) -> Checkpoint:
    """The last checkpoint of a region of one worker, with its state up to a position."""
    return numbered_checkpoint(
        1, workers={0: WorkerCheckpoint(state=at, steps=at)}, layout=even_layout(1), incarnation=1
    )
