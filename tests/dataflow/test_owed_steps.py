"""A worker that takes another one over makes the steps that its peers wait for before it has its state."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from checkpoint import FrameType, job_digest
from checkpoint.core.links.frames import ChannelFrame
from checkpoint.core.records.divisions import Division
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import WorkerCheckpoint
from dataflow import FileSink, FileSource, Graph, UserOperator, limits
from dataflow.limits import WorkerLimits
from dataflow.worker.circuit_thread import CircuitIncarnation, RestoreCircuit
from dataflow.worker.companion import RunningOperator
from dataflow.worker.messages import CheckpointTaken, Shared, StageEnded, ToLinks
from dataflow.worker.spec import Identity
from journal import Position
from tests.dataflow.support import rows_of

PEER, ME = 0, 1
LINES = [f"w{number % 7}" for number in range(40)]
AT_STEP = 3
"""The checkpoint is at the end of this step."""
LAST_STEP = 9
"""The last step that the lost process runs."""
STEPS = 60
"""Enough for all input."""

happened: list[str] = []
"""What stage 0 and the operator of stage 1 did, in order."""


class Numbered(UserOperator):
    """Numbers the rows of each line."""

    schema = "line string, n bigint"
    state = "line string, n bigint"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        happened.append("stage 1 has rows")
        for line in batch.column("line").to_pylist():
            self.counts[line] += 1
            yield line, self.counts[line]

    def checkpoint(self) -> list[tuple[str, int]]:
        return [*self.counts.items()]

    def reset(self, state: pa.RecordBatch) -> None:
        happened.append("stage 1 has its state")
        self.counts.update({one["line"]: one["n"] for one in state.to_pylist()})


class OneOfTwo:
    """Worker 1 of two, one process after the other, in this thread. The other one has no input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "input").mkdir()
        for name in "abcdef":  # worker 1 reads some of them
            (folder / "input" / name).write_text("".join(f"{line}\n" for line in LINES))
        graph = Graph("numbered")
        lines = graph.source("lines", FileSource(sorted((folder / "input").iterdir())))
        lines.key_by("by_line", "line").apply("numbered", Numbered()).sink("out", FileSink(folder / "out"))
        self.plan = graph.plan()
        self.divisions: dict[int, Division] = {}
        self.taken: CheckpointTaken | None = None
        self.voted: dict[str, Any] = {}

    def process(self, term: int) -> CircuitIncarnation:
        """Begin a process: the first one, or the one that takes over."""
        taken, self.shared = self.taken, Shared(incarnation=term)
        at, checkpoint, part = 0, 0, None
        if taken is not None:
            at, checkpoint = taken.step, taken.barrier.checkpoint
            where = Position(1, checkpoint, 0)
            part = WorkerCheckpoint(state=where, steps=where, sources=taken.sources, sinks=self.voted)
        order = RestoreCircuit(
            term, at, checkpoint, part, even_layout(2), b"s" * 16, local=True, takes_over=taken is not None
        )
        few = WorkerLimits(step_bytes_max=9, batch_bytes_max=9)
        me = Identity("region", ME)
        made = CircuitIncarnation(
            self.plan, me, order, worker_limits=few, shared=self.shared, post=self._take
        )
        for block in () if taken is None else taken.blocks:
            made.load(checkpoint, block.table, block.data)
        made.loaded()
        made.start([self.divisions[step] for step in range(at + 1, len(self.divisions) + 1)])
        return made

    def _take(self, message: ToLinks) -> None:
        if isinstance(message, StageEnded):
            happened.append(f"step {message.step}")
            if message.sources is not None:
                self.divisions[message.step] = Division(message.step, message.time_ms, message.sources)
        elif isinstance(message, CheckpointTaken):
            for writer in message.writers.values():
                writer.sync()
            self.voted = message.voted(RunningOperator())
            self.taken = message

    def peer_ends(self, process: CircuitIncarnation, step: int) -> None:
        """The peer has ended a step, and the divisions of both are durable."""
        end = ChannelFrame(FrameType.STEP_END, PEER, job_digest("region"), 1, step)
        self.shared.peers_at = max(self.shared.peers_at, step)
        process.arrived(end)
        process.divisions_durable(step)

    def run_until(self, process: CircuitIncarnation, last: int) -> None:
        """Let the peer end all steps up to this one, beginning after the checkpoint."""
        at = 0 if self.taken is None or process.number == 1 else self.taken.step
        while process.advance():
            pass
        for step in range(at + 1, last + 1):
            if step == AT_STEP and process.number == 1:
                process.request_checkpoint(1, final=False)
            self.peer_ends(process, step)
            while process.advance():
                pass


def output_of(folder: Path) -> list[list[str | None]]:
    return [row for _, row in rows_of(folder / "out")]


def check_output(folder: Path, other: Path) -> None:
    """The output in a folder is that of a worker that was never lost, which runs in another one."""
    undisturbed = OneOfTwo(other)
    only = undisturbed.process(1)
    undisturbed.run_until(only, STEPS)
    only.close()
    output = output_of(folder)
    assert output == output_of(other)
    assert output


@pytest.fixture
def lost(tmp_path: Path) -> OneOfTwo:
    """A worker whose first process was lost some steps after a checkpoint."""
    lost = OneOfTwo(tmp_path)
    process = lost.process(1)
    lost.run_until(process, LAST_STEP)
    process.close()
    assert lost.taken is not None
    assert max(lost.divisions) > lost.taken.step + 2, "more steps than sources run ahead"
    assert all(one.sources["lines"] for one in lost.divisions.values()), "it has read rows in all of them"
    happened.clear()
    return lost


def test_the_steps_of_the_chain_and_those_of_the_peers_are_made_before_the_state_is_restored(
    lost: OneOfTwo, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert lost.taken is not None
    process, recorded = lost.process(2), max(lost.divisions)
    lost.shared.peers_at = recorded + 2
    while process.advance():
        pass
    made = [f"step {step}" for step in range(lost.taken.step + 1, recorded + 3)]
    assert happened == [*made, "stage 1 has its state"], "and nothing of the peer has arrived"
    lost.run_until(process, STEPS)
    process.close()
    check_output(tmp_path, tmp_path_factory.mktemp("undisturbed"))


def test_what_arrives_before_the_state_is_run_after_it(lost: OneOfTwo, tmp_path: Path) -> None:
    """The steps of the peer are here before anything is made again."""
    assert lost.taken is not None
    process, first = lost.process(2), lost.taken.step + 1
    for step in range(first, first + limits.steps_ahead):
        lost.peer_ends(process, step)
    while process.advance():
        pass
    process.close()
    assert happened.index("stage 1 has its state") < happened.index("stage 1 has rows")
    for line, count in Counter(line for line, _ in output_of(tmp_path)).items():
        numbers = [number for one, number in output_of(tmp_path) if one == line]
        assert numbers == [str(number) for number in range(1, count + 1)]


def test_steps_that_take_much_memory_are_not_made_ahead_of_the_state(lost: OneOfTwo) -> None:
    assert lost.taken is not None
    process, first = lost.process(2), lost.taken.step + 1
    with mock.patch.object(limits, "take_over_bytes_ahead", 20):
        while process.advance():
            pass
        ahead = happened.index("stage 1 has its state")
        assert happened[:ahead] == [f"step {step}" for step in range(first, first + ahead)]
        assert 2 <= ahead < max(lost.divisions) - lost.taken.step
        lost.run_until(process, STEPS)
    process.close()


def test_a_large_state_does_not_wait_in_memory(lost: OneOfTwo) -> None:
    """It is restored as it comes, and the stages that need it begin when all of it is there."""
    assert lost.taken is not None
    with mock.patch.object(limits, "take_over_bytes_ahead", 0):
        process = lost.process(2)
        assert happened == []
        while process.advance():
            pass
        assert happened[-1] == "stage 1 has its state"
    process.close()


def test_a_step_that_becomes_owed_waits_for_one_piece_of_a_block(
    lost: OneOfTwo, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whenever a piece is restored, the peer ends one more step."""
    with mock.patch.object(limits, "take_over_rows_at_once", 2):
        process, recorded = lost.process(2), max(lost.divisions)
        ends = recorded
        while "stage 1 has its state" not in happened:
            made = len(happened)
            assert process.advance()
            if len(happened) == made:
                ends += 1
                lost.shared.peers_at = ends
        assert happened[-2] == f"step {ends}", "no step waits for all of the state"
        assert ends - recorded > 1, "it has several pieces"
        lost.run_until(process, STEPS)
    process.close()
    check_output(tmp_path, tmp_path_factory.mktemp("undisturbed"))
