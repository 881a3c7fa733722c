"""Output that a checkpoint covers is readable also after resets that did not complete: the workers'
directories are claimed then by epochs whose logs were never opened, or were opened and hold a start alone.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import msgspec
import pytest

from checkpoint.chains.input_log import last_recorded
from checkpoint.chains.manifest_log import CHAIN, checkpoint_record, read_manifest
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import OutputFollower, PublishedOutput
from checkpoint.cli.region import _print_manifest
from checkpoint.core.records.inputs import INPUT_CHAIN, InputPart, InputPiece, encode_part, producer_directory
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, SplitPosition, WorkerCheckpoint
from checkpoint.core.records.outputs import Publish, output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.requests.client import RegionReading
from dataflow.outputs import read_output
from dos_client import Store
from dos_client.errors import QuorumUnavailableError
from journal import ChainWriter, Op, Position, Record, StopNotFoundError, inspect_chain, take_over
from journal.inspecting import InspectionOutcome
from journal.showing import verdict_text
from spark_integration.core.offsets import BEGINNING, StreamPiece
from spark_integration.core.options import parse_options
from spark_integration.reading.chains import ChainScan, InputOrigin, OutputOrigin
from tests.checkpoint.manifest_samples import notes
from tests.journal.memory_store import MemoryStore

REGION = "counts"
SINK = "x"
WORKER = worker_directory(REGION, 0)
STEPS_IN_CHECKPOINT = [1, 2, 3]

pytestmark = pytest.mark.trio


class RegionStore(MemoryStore):
    """A store in memory that lists its directories."""

    async def list_directories(self, prefix: str = "") -> list[str]:
        return sorted({name for one in self.servers for name in one.objects if name.startswith(prefix)})


async def log_of(
    store: MemoryStore, epoch: int, publish: Publish, in_checkpoint: Position | None
) -> OutputLog:
    claim = store.claim(epoch, directory=WORKER)
    after = len(STEPS_IN_CHECKPOINT) if in_checkpoint else 0
    return await OutputLog.open(
        claim, SINK, publish, after_step=after, at=in_checkpoint, generation=1, workers=1
    )


def checkpoint_at(in_checkpoint: Position, checkpoint: int = 1) -> Checkpoint:
    return Checkpoint(
        number=checkpoint,
        step=STEPS_IN_CHECKPOINT[-1] + checkpoint - 1,
        incarnation=1,
        final=False,
        wall_time_ms=0,
        workers={
            0: WorkerCheckpoint(
                state=in_checkpoint, steps=in_checkpoint, sinks={SINK: msgspec.to_builtins(in_checkpoint)}
            )
        },
        layout=even_layout(1),
        operators=notes(count="count"),
        parent=checkpoint - 1,
        retained=(checkpoint,),
        irrevocable={},
    )


async def region_whose_resets_failed(publish: Publish) -> RegionStore:
    """Incarnation 1 commits a checkpoint; 2 and 3 open their logs and fail; 4 and 5 only claim."""
    store = RegionStore()
    log = await log_of(store, 1, publish, None)
    for step in STEPS_IN_CHECKPOINT:
        await log.append(SINK, step, 0, step, b"", {"in": {"split": step}})
    in_checkpoint = await log.synced(STEPS_IN_CHECKPOINT[-1])
    manifest = await ChainWriter.open(store.claim(1, directory=coordinator_directory(REGION)), CHAIN, None, 1)
    await manifest.wait_synced(manifest.append(checkpoint_record(checkpoint_at(in_checkpoint))))
    for epoch in (2, 3):
        log = await log_of(store, epoch, publish, in_checkpoint)
    store.claim(4, directory=WORKER)
    store.claim(5, directory=WORKER)
    return store


@pytest.mark.parametrize("publish", Publish)
async def test_people_read_all_that_the_last_checkpoint_covers(publish: Publish) -> None:
    # EVIDENCE-OF: P-6
    store = await region_whose_resets_failed(publish)
    assert [step.step async for step in read_output(store, REGION, SINK)] == STEPS_IN_CHECKPOINT


@pytest.mark.parametrize("publish", Publish)
async def test_another_region_reads_all_that_the_last_checkpoint_covers(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await region_whose_resets_failed(publish)
    shown = PublishedOutput(store, REGION, SINK)
    follower = shown.follower("w0000", SplitPosition(0))
    pieces = await given(follower)
    in_checkpoint = await shown.position("w0000")
    assert in_checkpoint is not None
    assert follower.seen == in_checkpoint.size
    assert pieces == [], "these steps have no rows"
    assert await given(follower) == [], "nothing comes twice"
    skipping = shown.follower("w0000", SplitPosition(0))
    await skipping.skip()
    assert skipping.seen == in_checkpoint.size, (
        "a reader that begins at the present passes over what is shown"
    )


async def given(follower: OutputFollower) -> list[InputPiece]:
    async with aclosing(follower.poll()) as pieces:
        return [piece async for piece in pieces]


@pytest.mark.parametrize("publish", Publish)
async def test_spark_reads_all_that_the_last_checkpoint_covers(publish: Publish) -> None:
    store = await region_whose_resets_failed(publish)
    origin = OutputOrigin(store, parse_options({"path": f"dos://m1/{REGION}", "output": SINK}))
    end = await origin.end("w0000")
    assert (end.epoch, end.size) == (1, (await PublishedOutput(store, REGION, SINK).position("w0000")).size)
    (one,) = await origin.ranges("w0000", BEGINNING, end)
    assert one.end == end.size
    assert [piece.end async for piece in whole(await origin.scan("w0000", BEGINNING))][-1] == end


async def whole(scan: ChainScan) -> AsyncGenerator[StreamPiece]:
    while (piece := await scan.next()) is not None:
        yield piece


async def test_a_reader_without_a_checkpoint_reports_what_it_cannot_show() -> None:
    store = await region_whose_resets_failed(Publish.STEP)
    state = await inspect_chain(store, WORKER, output_chain(SINK))
    there = sum(len(data) for data in store.servers[0].objects[WORKER].values())
    assert (state.unproved, state.claimed) == (there - state.bytes, 5)
    words = f"{state.unproved} more bytes of chain out-x are stored and cannot be proved committed now,"
    assert state.unproved_text.startswith(words)
    assert "a take-over at epoch 5 did not complete" in state.unproved_text
    with pytest.raises(StopNotFoundError, match="a take-over at epoch 5 did not complete"):
        state.up_to(Position(1, state.bytes + 1, 0))
    outcome = InspectionOutcome("out-x", "chain", unproved=state.unproved_text)
    assert verdict_text(outcome).startswith("sound as far as it can be proved: ")
    log = await OutputLog.open(
        store.claim(6, directory=WORKER), SINK, Publish.STEP, after_step=3, at=None, generation=1, workers=1
    )
    state = await inspect_chain(store, WORKER, output_chain(SINK))
    assert (state.unproved, state.unproved_text) == (0, ""), "the next writer settles them"
    assert log.last_step == 3


async def test_bytes_in_flight_of_a_living_writer_are_not_told_as_unproved() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1)
    claim.held = True
    writer.append(Record(Op.OUTPUT, strings=(b"r",)))
    claim.deliver(1)
    state = await inspect_chain(store, claim.directory, "J")
    assert (state.unproved, state.claimed) == (0, 0)
    await take_over(store.claim(2, [1, 2]), "J", generation=1)
    state = await inspect_chain(store, claim.directory, "J")
    assert state.unproved > 0
    assert state.claimed == 2


async def test_a_manifest_says_when_a_later_checkpoint_may_be_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The newest record of a manifest is the checkpoint: nothing else names it.
    store = RegionStore()
    claim = store.claim(1, directory=coordinator_directory(REGION))
    manifest = await ChainWriter.open(claim, CHAIN, None, 1, pipelined=False)
    at, ends = Position(1, 100, 7), [0]
    for checkpoint in (1, 2, 3):
        end = manifest.append(checkpoint_record(checkpoint_at(at, checkpoint)))
        await manifest.wait_synced(end)
        ends.append(end.size)
    view = await read_manifest(cast("Store", store), REGION)
    assert ([checkpoint.number for checkpoint in view.checkpoints], view.unproved) == ([1, 2, 3], "")

    store.claim(2, directory=claim.directory)
    view = await read_manifest(cast("Store", store), REGION)
    assert [checkpoint.number for checkpoint in view.checkpoints] == [1, 2], (
        "what a later record proves is shown"
    )
    assert f"the manifest has {ends[3] - ends[2]} more bytes" in view.unproved
    assert view.unproved.startswith("a later checkpoint may be committed: ")
    assert "a take-over at epoch 2 did not complete" in view.unproved
    _print_manifest(view)
    assert capsys.readouterr().out.splitlines()[-1] == view.unproved
    assert RegionReading(view).as_json()["manifest"]["unproved"] == view.unproved


@pytest.mark.parametrize("fails", [True, False])
async def test_spark_takes_what_it_has_read_for_neither_lost_nor_new(fails: bool) -> None:
    # No checkpoint of a region names an input; that of the query that read it does.
    store = RegionStore()
    directory = producer_directory(REGION, "orders", "p")
    writer = await ChainWriter.open(store.claim(1, directory=directory), INPUT_CHAIN, None, 1)
    digest = 0
    for number in (1, 2):
        part = InputPart(number, 0, True, 1, digest, 0, b"data")
        ints, strings = encode_part(part)
        digest = part.digest
        await writer.wait_synced(writer.append(Record(Op.INPUT, ints=ints, strings=strings)))
    options = {"path": f"dos://m1/{REGION}", "input": "orders", "failOnDataLoss": str(fails).lower()}
    read = [piece.end async for piece in whole(await origin_of(store, options).scan("p", BEGINNING))]
    assert len(read) == 2

    store.claim(2, directory=directory)  # a producer of that name comes, and goes before its segment is there
    assert (await inspect_chain(store, directory, INPUT_CHAIN)).unproved > 0
    assert [piece async for piece in whole(await origin_of(store, options).scan("p", read[-1]))] == []

    claim = store.claim(3, directory=directory)
    chain = await take_over(claim, INPUT_CHAIN, generation=1)
    writer = await ChainWriter.open(claim, INPUT_CHAIN, chain, 1)
    ints, strings = encode_part(InputPart(3, 0, True, 1, digest, 0, b"data"))
    await writer.wait_synced(writer.append(Record(Op.INPUT, ints=ints, strings=strings)))
    new = [piece.end async for piece in whole(await origin_of(store, options).scan("p", read[-1]))]
    assert len(new) == 1, "the next writer settles it, and only what is new is given"


async def test_readers_of_all_refuse_a_chain_whose_end_only_an_unavailable_member_knows() -> None:
    # EVIDENCE-OF: P-5
    store = RegionStore()
    directory = producer_directory(REGION, "orders", "p")
    claim = store.claim(1, directory=directory)
    writer = await ChainWriter.open(claim, INPUT_CHAIN, None, 1)
    claim.held = True
    ints, strings = encode_part(InputPart(1, 0, True, 1, 0, 0, b"data"))
    writer.append(Record(Op.INPUT, ints=ints, strings=strings))
    claim.deliver(1)
    claim.deliver(2)
    await writer.wait_synced()
    store.servers[1].up = False
    origin = origin_of(store, {"path": f"dos://m1/{REGION}", "input": "orders"})
    for read in (
        lambda: last_recorded(cast("Store", store), REGION, "orders", "p", whole=True),
        lambda: origin.all_ranges("p"),
    ):
        with pytest.raises(QuorumUnavailableError, match="only members that did not answer know"):
            await read()
    assert (await last_recorded(cast("Store", store), REGION, "orders", "p")).batch == 0, "for estimates"
    store.servers[1].up = True
    assert (await last_recorded(cast("Store", store), REGION, "orders", "p", whole=True)).batch == 1
    assert len(await origin.all_ranges("p")) == 1


def origin_of(store: MemoryStore, options: dict[str, str]) -> InputOrigin:
    return InputOrigin(cast("Store", store), parse_options(options))
