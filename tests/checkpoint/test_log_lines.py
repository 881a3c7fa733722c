"""The driver's log of a region: which events have a line, and that a reader understands it alone."""

from dataclasses import replace

import pytest

from checkpoint.core.log_lines import Line, LogLines, failure_text, reset_text
from checkpoint.core.region import (
    CheckpointCommitted,
    RegionEvent,
    RegionSpec,
    RegionStatus,
    ReplaceSettled,
    ResetReport,
    RestoreSettled,
    SavepointSettled,
    ScaleSettled,
    StateChanged,
    UnderWayStatus,
    WorkerJoined,
    WorkerLost,
    WorkerStatus,
)
from checkpoint.core.region import RegionState as State
from checkpoint.errors import RegionFailedError
from checkpoint.limits import slow_checkpoint_again_s, slow_checkpoint_s

SPEC = RegionSpec(name="shop", store_url="dos://h1,h2,h3", job_key=b"k" * 16, workers=2)
RESET = ResetReport(time=1.0, worker=1, reason="killed", seconds=0.5, bytes=10, incarnation=4, checkpoint=7)
GONE = "its control link is gone: closed"
STORE = "h2:9999 is unavailable"
MANIFEST = f"the manifest waits for the store: {STORE}"


def status(state: State = State.RUNNING, checkpoint: int = 7) -> RegionStatus:
    workers = tuple(WorkerStatus(index, "RUNNING", host=f"host{index}") for index in range(2))
    return RegionStatus(state, "", 3, checkpoint, 40, 5, 0, workers, ())


class Log:
    """What a log of level INFO or WARNING has, of events that come one second after the other."""

    def __init__(self, spec: RegionSpec = SPEC) -> None:
        self.lines = LogLines(spec)
        self.now = 100.0
        self.state = State.STARTING

    def event(self, event: RegionEvent, checkpoint: int = 7) -> Line | None:
        self.now += 1.0
        if isinstance(event, StateChanged):
            self.state = event.state
        line = self.lines.of_event(event, status(self.state, checkpoint), self.now)
        return None if line.level == "DEBUG" else line

    def states(self, *states: State, reason: str = "", checkpoint: int = 7) -> list[Line]:
        found = [self.event(StateChanged(state, reason), checkpoint) for state in states]
        return [line for line in found if line is not None]

    def running(self) -> "Log":
        self.states(State.WAITING_FOR_WORKERS, State.RESTORING, State.RUNNING)
        return self


def committed(number: int, seconds: float = 0.1) -> CheckpointCommitted:
    return CheckpointCommitted(number, 9, final=False, seconds=seconds, phases_s={"align": seconds})


def test_a_normal_run_has_three_lines_whatever_the_number_of_checkpoints() -> None:
    log = Log()
    lines = log.states(State.WAITING_FOR_WORKERS, checkpoint=0)
    assert log.event(WorkerJoined(0, 1, "host0", 7)) is None
    lines += log.states(State.RESTORING, State.RUNNING)
    assert [log.event(committed(number)) for number in range(1, 101)] == [None] * 100
    lines += log.states(State.STOPPING, State.FINISHED, reason="all input is processed")
    assert [line.level for line in lines] == ["INFO"] * 3
    assert [line.text for line in lines] == [
        "starts 2 workers at the beginning; its state: dos region status dos://h1,h2,h3 shop",
        "runs: 2 workers on host0, host1, after 3.0 s",
        "has finished: all input is processed after 105.0 s; its last checkpoint is 7",
    ]


def test_a_region_that_continues_says_from_which_checkpoint() -> None:
    (line,) = Log().states(State.WAITING_FOR_WORKERS)
    assert line.text.startswith("starts 2 workers at checkpoint 7; ")


def test_a_lost_worker_has_a_line_when_it_is_lost_and_one_when_the_region_runs_again() -> None:
    log = Log().running()
    lost = log.event(WorkerLost(1, 1, f"{GONE}\ntrace"))
    assert lost == ("WARNING", "worker 1 was lost: trace; it is started again")
    assert log.states(State.RESTORING, State.WAITING_FOR_WORKERS, State.RESTORING, reason=GONE) == []
    runs = log.event(replace(RESET, reason=f"worker 1 was lost: {GONE}"))
    assert runs is not None
    assert runs.level == "WARNING"
    text = f"runs again after 0.5 s, all workers from checkpoint 7 on: worker 1 was lost: {GONE}"
    assert runs.text == text
    assert log.states(State.RUNNING) == []


def test_a_worker_that_is_lost_while_its_region_ends_is_not_said_to_be_started_again() -> None:
    log = Log().running()
    log.states(State.STOPPING)
    assert log.event(WorkerLost(1, 1, GONE)) == ("WARNING", f"worker 1 was lost: {GONE}")


@pytest.mark.parametrize(
    ("reset", "text"),
    [
        (RESET, "all workers from checkpoint 7 on: worker 1 was lost: killed"),
        (replace(RESET, reason="Trace:\n  x\nOSError: gone\n"), "worker 1 was lost: OSError: gone"),
        (replace(RESET, reason=""), "worker 1 was lost: unknown reason"),
        (replace(RESET, worker=-1, reason="asked", checkpoint=0), "all workers from the beginning on: asked"),
        (replace(RESET, term=3, reason="worker 1 was lost: x"), "worker 1 alone from checkpoint 7 on: "),
        (replace(RESET, term=3, reason="an edit"), "from checkpoint 7 on: an edit"),
    ],
)
def test_a_reset_is_one_line_whatever_its_reason(reset: ResetReport, text: str) -> None:
    line = reset_text(reset)
    assert line.startswith("runs again after 0.5 s, ")
    assert text in line
    assert "\n" not in line


def test_a_region_that_waits_for_its_store_says_so_once_with_the_remedy_and_when_it_continues() -> None:
    log = Log().running()
    (waits,) = log.states(State.WAITING_FOR_STORE, State.WAITING_FOR_STORE, reason=MANIFEST)
    assert waits.level == "WARNING"
    assert waits.text.startswith(f"waits for the store: {STORE}; it continues automatically; ")
    assert "dos store status dos://h1,h2,h3" in waits.text
    assert log.states(State.RUNNING) == [("WARNING", "the store answers again, after 2.0 s")]
    log.states(State.WAITING_FOR_STORE, reason=STORE)
    assert log.states(State.STOPPING, State.FAILED, reason="x") == [], "it does not answer"


def test_a_region_that_cannot_begin_for_want_of_its_store_says_when_it_begins() -> None:
    log = Log()
    lines = log.states(State.WAITING_FOR_STORE, State.WAITING_FOR_WORKERS, State.RUNNING, reason=STORE)
    assert [line.text.split(maxsplit=1)[0] for line in lines] == ["waits", "starts", "runs:"]


def test_a_slow_checkpoint_is_named_while_it_is_slow_and_when_it_is_committed_but_not_each_one() -> None:
    log = Log().running()

    def slow(number: int, seconds: float, now: float) -> Line | None:
        under_way = UnderWayStatus(number, seconds, {1: "operator 'words' has run for 9 s"})
        return log.lines.of_status(replace(status(), under_way=under_way), now)

    assert log.lines.of_status(status(), 0.0) is None
    assert slow(8, slow_checkpoint_s - 0.1, 0.0) is None
    line = slow(8, slow_checkpoint_s, 1.0)
    assert line is not None
    assert line.level == "WARNING"
    assert "checkpoint 8 has waited 10.0 s for the vote of worker 1: operator 'words'" in line.text
    assert "drain_timeout 180 s" in line.text
    assert slow(8, slow_checkpoint_s + 1, 2.0) is None
    done = log.event(committed(8, 14.0))
    assert done == ("WARNING", "checkpoint 8 was committed after 14.0 s (align 14.0 s)")
    assert slow(9, slow_checkpoint_s, slow_checkpoint_again_s) is None, "the next one, within a minute"
    assert log.event(committed(9, 14.0)) is None
    assert slow(10, slow_checkpoint_s, 1.0 + slow_checkpoint_again_s) is not None


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            ScaleSettled(3, 3, seconds=5.0, pause_s=0.4),
            "INFO",
            "has 3 workers now, after 5.0 s; for 0.4 s of",
        ),
        (ScaleSettled(3, 2, error="no slot"), "WARNING", "keeps 2 workers: no slot"),
        (ReplaceSettled((0, 1), (0, 1)), "INFO", "other processes for workers: replaced: 0, 1"),
        (ReplaceSettled((0, 1), (0,), "no slot"), "WARNING", "replaced: 0; kept: 1: no slot"),
        (RestoreSettled("savepoint:a", 5, 9), "WARNING", "was restored to checkpoint 5 (savepoint:a), as"),
        (RestoreSettled("checkpoint:5", error="gone"), "WARNING", "was not restored to checkpoint:5: gone"),
        (SavepointSettled("a", 5, "taken"), "WARNING", "savepoint 'a' was not changed: taken"),
        (SavepointSettled("a", 5), "INFO", "savepoint 'a' was dropped"),
    ],
)
def test_the_outcome_of_a_request_is_a_line(event: RegionEvent, level: str, text: str) -> None:
    line = Log().running().event(event)
    assert line is not None
    assert line.level == level
    assert text in line.text


def test_a_pause_a_stop_and_a_newer_driver_have_lines() -> None:
    log = Log().running()
    paused, continues, stopped = log.states(State.PAUSED, State.RUNNING, State.STOPPED, reason="stopped")
    assert paused.text.endswith("at checkpoint 7; to continue it: dos region resume dos://h1,h2,h3 shop")
    assert continues.text == "continues after the pause"
    assert stopped.text.startswith("stopped after ")
    assert stopped.text.endswith("its last checkpoint is 7, where the next run of that name continues")
    (fenced,) = Log().running().states(State.FENCED, reason="claimed by driver h9")
    text = "is run by another driver from now on, and ends here: claimed by driver h9"
    assert fenced == ("WARNING", text)


def test_a_failure_says_what_to_do_and_where_the_next_run_begins() -> None:
    text = failure_text(RegionFailedError("operator 'words' failed: IndexError"), 7)
    assert text.startswith("failed: operator 'words' failed: IndexError; its last checkpoint is 7; correct ")
    assert failure_text(RegionFailedError("x"), 0).endswith("it begins at the beginning")
    known = failure_text(RegionFailedError("x", remedy="bring copies back"), 7)
    assert known == "failed: x (bring copies back); its last checkpoint is 7"
