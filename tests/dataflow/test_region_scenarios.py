"""What resets a region, one at a time, on real servers and real worker processes; and Wallaroo's failures in
the field. Each ends with the output of a run without faults. The table is in docs/robustness.md.
"""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec, RegionState, ResetReport, WorkerJoined, WorkerLost
from dataflow import FileSink, FileSource, Graph, OperatorFailure, local
from dataflow.handle import RegionHandle
from dataflow.operators.base import OperatorContext
from dataflow.sinks.files import FileWriter, PartFile, part_name
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.support import last_counts, split_words, true_counts
from tests.dataflow.test_region_processes import WAIT_S, Watch, finished, running
from tests.support.polling import until
from tests.support.sockets import break_between

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

TRAP = "trap"
"""Words that begin so are in one file only."""
REPEAT = 20


@dataclass(frozen=True)
class Gate:
    """Files by which a test and the user functions of its region speak to each other."""

    folder: Path

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def put(self, name: str) -> None:
        (self.folder / name).touch()

    def put_first(self, name: str) -> bool:
        """Whether this call was the one that put it."""
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.has(name):
            assert time.monotonic() < deadline, f"{name} did not come"
            time.sleep(0.01)


Function = Callable[[pa.RecordBatch], Any]


def paced(gate: Gate, act: Callable[[Gate], None], batch: pa.RecordBatch) -> Any:
    """Words of lines, taking time over each batch until `hurry`; `act` is called where the trap is met."""
    if not gate.has("hurry"):
        time.sleep(0.1)  # longer than a batch should take, so batches get small
    words = split_words(batch)
    if gate.has("armed") and any(word.startswith(TRAP) for word in words.to_pylist()):
        act(gate)
    return words


def nothing(gate: Gate) -> None:
    """What most scenarios do at the trap."""


def hang_once(gate: Gate) -> None:
    """The first who comes by never comes back."""
    if gate.put_first("hanging"):
        threading.Event().wait()


def fail_once(gate: Gate) -> None:
    if gate.put_first("failed"):
        raise OperatorFailure("the service that is asked for words is away")


def fail_always(gate: Gate) -> None:
    raise OperatorFailure("the service that is asked for words is away")


class Scenario:
    """A word count over two files, one of them with the trap, and what a scenario does to it."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.gate = Gate(folder)
        self.out = folder / "out"
        self.paths = [folder / "a.txt", folder / "b.txt"]
        for path, third in zip(self.paths, ("plain", TRAP), strict=True):
            path.write_text("".join(f"word{n % 900} and{n % 7} {third}{n % 3}\n" for n in range(4_000)))

    def graph(
        self,
        act: Callable[[Gate], None] = nothing,
        *,
        after: Function | None = None,
        sink: FileSink | None = None,
    ) -> Graph:
        """`after`: a function behind the counting, at the worker that counts."""
        graph = Graph("wordcount")
        lines = graph.source("lines", FileSource(self.paths, repeat=REPEAT))
        function = partial(paced, self.gate, act)
        words = lines.flat_map("words", function, schema="word string", takes="batch")
        counts = words.key_by("by_word", "word").count("counts")
        if after is not None:
            counts = counts.map("after", after, takes="batch")
        counts.sink("out", sink or FileSink(self.out))
        return graph

    def running(self, graph: Graph, **options: Any) -> Any:
        return running(graph, self.store, self.folder, **options)

    def ends_right(self, control: RegionHandle) -> None:
        self.gate.put("hurry")
        assert finished(control), (control.status, control.exception())
        assert last_counts(self.out) == dict(true_counts(self.paths, REPEAT))


@pytest.fixture
def scenario(tmp_path: Path, store: str) -> Scenario:
    return Scenario(tmp_path, store)


def resets(watch: Watch) -> list[ResetReport]:
    return [event for event in watch.events if isinstance(event, ResetReport)]


def pids(control: RegionHandle) -> list[int]:
    return [worker.pid for worker in control.status.workers]


def is_reset(event: object) -> bool:
    return isinstance(event, ResetReport)


# --- what resets a region -----------------------------------------------------------------------------------


# EVIDENCE-OF: P-4, P-10
def test_a_worker_that_hangs_is_fenced_and_replaced(scenario: Scenario) -> None:
    with scenario.running(scenario.graph(), fields={"suspect_after_s": 2.5}) as (control, watch):
        watch.checkpoints(2)
        before = pids(control)
        os.kill(before[1], signal.SIGSTOP)
        watch.wait(is_reset)
        after = pids(control)
        assert after[0] == before[0], "the one that was well stays"
        assert after[1] != before[1]
        assert not Path(f"/proc/{before[1]}").exists(), "the one that hung is gone"
        assert "nothing was received from it" in resets(watch)[0].reason
        scenario.ends_right(control)


# EVIDENCE-OF: P-10
def test_a_broken_connection_between_workers_resets_and_ends_nobody(scenario: Scenario) -> None:
    with scenario.running(scenario.graph()) as (control, watch):
        watch.checkpoints(2)
        before = pids(control)
        assert break_between(*before) == 2, "one each way"
        watch.wait(is_reset)
        assert "is lost" in resets(watch)[0].reason
        scenario.ends_right(control)
        assert len(resets(watch)) == 1
        assert not [event for event in watch.events if isinstance(event, WorkerLost)]


# EVIDENCE-OF: P-10
def test_an_operator_that_reports_a_failure_resets_the_region(scenario: Scenario) -> None:
    with scenario.running(scenario.graph(fail_once)) as (control, watch):
        watch.checkpoints(2)
        before = pids(control)
        scenario.gate.put("armed")
        watch.wait(is_reset)
        (report,) = resets(watch)
        where = (
            f"operator 'words' failed in worker {report.worker} at source 'lines', file '{scenario.paths[1]}'"
        )
        assert report.reason.startswith(where)
        assert "the service that is asked for words is away" in report.reason
        assert control.status.workers[report.worker].error.startswith("Traceback")
        assert pids(control) == before, "nobody was ended"
        scenario.ends_right(control)


def test_resets_that_lead_nowhere_end_the_region_clearly(scenario: Scenario) -> None:
    graph = scenario.graph(fail_always)
    with scenario.running(graph, fields={"max_consecutive_reset_attempts": 2}) as (control, watch):
        watch.checkpoints(1)
        scenario.gate.put("armed")
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        said = str(control.exception())
        assert "after 2 consecutive resets; last reason: operator 'words' failed" in said
        assert "then run the region again; it continues from its last checkpoint" in said
        assert "OperatorFailure" in getattr(control.exception(), "traceback_text", "")
    with scenario.running(scenario.graph()) as (control, _):
        scenario.ends_right(control)


def test_a_reset_by_hand_goes_back_and_leaves_no_trace(scenario: Scenario) -> None:
    with scenario.running(scenario.graph()) as (control, watch):
        watch.checkpoints(2)
        control.reset()
        watch.wait(is_reset)
        assert resets(watch)[0].worker == -1
        assert control.status.reset_attempts == 0
        scenario.ends_right(control)


# --- Wallaroo's failures in the field -----------------------------------------------------------------------


def test_a_checkpoint_that_never_completes_is_given_up_and_the_next_one_comes(scenario: Scenario) -> None:
    """User code of one worker never comes back, while its heart beats: only the drain's time-out notices."""
    with scenario.running(scenario.graph(hang_once), fields={"drain_timeout_s": 2.0}) as (control, watch):
        watch.checkpoints(1)
        scenario.gate.put("armed")
        watch.wait(is_reset)
        assert "no vote for checkpoint" in resets(watch)[0].reason
        assert "in drain_timeout 2 s" in resets(watch)[0].reason
        scenario.ends_right(control)


class HeldSink(FileSink):
    """A file sink whose part of worker 1 takes as long to sync as the test likes, once."""

    gate: Gate

    def __init__(self, directory: Path, gate: Gate) -> None:
        super().__init__(directory)
        object.__setattr__(self, "gate", gate)

    def __reduce__(self) -> Any:
        return HeldSink, (Path(self.directory), self.gate)

    def open(self, context: OperatorContext) -> FileWriter:
        part = PartFile(self.directory, part_name(context.worker))
        return HeldWriter(self.gate, context, part) if context.worker == 1 else super().open(context)


class HeldWriter(FileWriter):
    """See above."""

    def __init__(self, gate: Gate, context: OperatorContext, part: PartFile) -> None:
        super().__init__(context, part)
        self._gate = gate

    def sync(self) -> None:
        if self._gate.has("armed") and self._gate.put_first("held"):
            self._gate.wait("go on")
        super().sync()


# EVIDENCE-OF: P-7, P-10
def test_a_worker_killed_during_a_checkpoint_leaves_nothing_of_it(scenario: Scenario) -> None:
    """One worker has voted, and its sink has prepared the checkpoint, when the other dies. The region
    restores the checkpoint before, not what the sink had prepared, and then commits the number again.
    """
    graph = scenario.graph(sink=HeldSink(scenario.out, scenario.gate))
    with scenario.running(graph, checkpoint_interval=0.3) as (control, watch):
        watch.checkpoints(2)
        scenario.gate.put("armed")
        scenario.gate.wait("held")
        begun, incarnation = wait_for_a_vote(control), control.status.incarnation
        os.kill(pids(control)[1], signal.SIGKILL)
        watch.wait(is_reset)
        assert resets(watch)[0].checkpoint == begun - 1
        assert control._control.wait_checkpoint(begun, WAIT_S)
        assert control.status.incarnation == incarnation + 1
        scenario.ends_right(control)


def wait_for_a_vote(control: RegionHandle) -> int:
    """Wait until only worker 0 has voted for the pending checkpoint. Return its number."""
    deadline = time.monotonic() + WAIT_S
    assert control._control._shell is not None
    state = control._control._shell.core.checkpoints
    while state.pending is None or set(state.pending.votes) != {0}:
        assert time.monotonic() < deadline, control.status
        control.wait(0.01)
    return state.pending.number


# EVIDENCE-OF: P-7
def test_a_sink_that_cannot_write_its_part_of_a_checkpoint_is_rolled_back(scenario: Scenario) -> None:
    """The kernel refuses to extend a part: the checkpoint is abandoned, and the next process writes it."""
    with scenario.running(scenario.graph()) as (control, watch):
        watch.checkpoints(2)
        size = (scenario.out / "part-w0000.tsv").stat().st_size
        resource.prlimit(pids(control)[0], resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        watch.wait(lambda event: isinstance(event, WorkerLost))
        watch.wait(is_reset)
        assert f"output '{scenario.out / 'part-w0000.tsv'}' at byte" in resets(watch)[0].reason
        scenario.ends_right(control)


class DeafLauncher(ForkLauncher):
    """One that cannot end a process, as on a machine that is cut off, and starts the next one beside it."""

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        super().start(worker, attempt, beside=True)

    standbys = 0

    def cancel(self, worker: int, attempt: int) -> None:
        pass


# EVIDENCE-OF: P-4, P-7
def test_a_worker_that_wakes_up_after_its_successor_came_changes_nothing(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale token meets a newer barrier: what the old process still sends and writes counts nowhere."""
    monkeypatch.setattr(local, "ProcessLauncher", DeafLauncher)
    with scenario.running(scenario.graph(), fields={"suspect_after_s": 2.5}) as (control, watch):
        watch.checkpoints(2)
        zombie = pids(control)[1]
        os.kill(zombie, signal.SIGSTOP)
        watch.wait(lambda event: isinstance(event, WorkerJoined) and (event.worker, event.attempt) == (1, 2))
        os.kill(zombie, signal.SIGCONT)
        watch.wait(is_reset)
        committed = control.status.last_checkpoint
        assert control._control.wait_checkpoint(committed + 1, WAIT_S)
        scenario.ends_right(control)
        assert control.status.incarnation == 2, "the one that woke up disturbed nobody"


def slowly(gate: Gate, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Behind the counting: the worker that counts the plain words takes its time over each step."""
    if not gate.has("hurry") and "plain0" in batch["word"].to_pylist():
        time.sleep(0.25)
    return batch


def has_committed(control: RegionHandle, number: int) -> bool:
    return control.status.last_checkpoint == number


def test_a_barrier_passes_where_one_worker_is_slow_and_all_others_wait(scenario: Scenario) -> None:
    """Sources run at most two steps ahead of the slowest, so a barrier has few steps before it, however much
    input there is.
    """
    graph = scenario.graph(after=partial(slowly, scenario.gate))
    with scenario.running(graph, checkpoint_interval=3600.0) as (control, watch):
        watch.wait(lambda event: getattr(event, "state", None) is RegionState.RUNNING)
        for number in range(1, 4):
            before = control.status.step
            assert control.checkpoint(WAIT_S) == number
            until(partial(has_committed, control, number), "the status has the checkpoint", WAIT_S)
            assert control.status.last_checkpoint_step <= before + 8
        assert not any(worker.counters.exhausted for worker in control.status.workers)
        # A checkpoint that is under way is not the one requested: it may lack rows that were read before.
        under_way, shell = control._control.request_checkpoint(), control._control._shell
        assert shell is not None
        until(lambda: shell.core.checkpoints.pending is not None, "a checkpoint is under way", WAIT_S)
        assert control.checkpoint(WAIT_S) == under_way + 1
        scenario.ends_right(control)


def test_a_number_that_is_requested_is_above_the_last_commit_even_if_the_status_is_older() -> None:
    spec = RegionSpec(name="r", workers=1, store_url="dos://h", job_key=b"k" * 32, operators={})
    control = RegionControl(spec)
    control._checkpoint = 3  # its commit was reported, and the status is updated next
    assert control.request_checkpoint() == 4


def test_a_sink_that_is_missing_at_the_start_is_waited_for(scenario: Scenario) -> None:
    """The output lies on something that is mounted late: a link that leads nowhere yet."""
    mounted = scenario.folder / "mounted"
    scenario.out.symlink_to(mounted)
    with scenario.running(scenario.graph()) as (control, watch):
        watch.wait(lambda event: isinstance(event, WorkerLost))
        lost = next(event for event in watch.events if isinstance(event, WorkerLost))
        assert f"output '{scenario.out}/part-w000{lost.worker}.tsv' cannot be opened" in lost.reason
        mounted.mkdir()
        scenario.ends_right(control)
