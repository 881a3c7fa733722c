"""User code that ends or blocks the process of its worker: what ran is named, a busy worker is not lost."""

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint import limits
from tests.dataflow.test_region_processes import WAIT_S
from tests.dataflow.test_region_scenarios import Gate, Scenario, is_reset, pids, resets, scenario
from tests.support.polling import until

__all__ = ["scenario"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

HELD_S = 6
WITH_LOCK = ctypes.PyDLL(None)
"""The C library, whose functions are called without releasing the interpreter lock."""


def once(name: str, act: Callable[[], Any], gate: Gate) -> None:
    if gate.put_first(name):
        act()


def end_at_once() -> None:
    os._exit(3)


def read_address_0() -> None:
    ctypes.string_at(0)


def hold_the_lock() -> None:
    WITH_LOCK.sleep(HELD_S)


def go_on_in_a_child() -> None:
    os.fork()


def fork_and_end_twice(gate: Gate) -> None:
    once("forked", go_on_in_a_child, gate)
    if gate.has("armed to end"):
        once("ended", end_at_once, gate)
    if gate.has("armed again"):
        once("crashed", read_address_0, gate)


def hold_once(gate: Gate) -> None:
    once("held", hold_the_lock, gate)


def test_the_operator_that_forked_or_ended_its_process_is_named(scenario: Scenario) -> None:
    """A child that user code forked does not go on in the engine."""
    with scenario.running(scenario.graph(fork_and_end_twice)) as (control, watch):
        watch.checkpoints(1)
        scenario.gate.put("armed")
        until(lambda: scenario.gate.has("forked"), "forked", WAIT_S)
        control.checkpoint(WAIT_S)
        assert not resets(watch)
        scenario.gate.put("armed to end")
        watch.wait(is_reset)
        scenario.gate.put("armed again")
        watch.wait(is_reset, 2)
        assert all(one.reason.endswith("; operator 'words' was running") for one in resets(watch)), resets(
            watch
        )
        scenario.ends_right(control)
    text = "".join(path.read_text() for path in Path(scenario.folder / "logs").glob("*.log"))
    assert "operator 'words' called os.fork(), and the child (process" in text


# EVIDENCE-OF: P-10
def test_user_code_that_holds_the_interpreter_lock_is_no_lost_worker(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "long_call_s", 1.0)
    fields = {"suspect_after_s": 2.5}
    with scenario.running(scenario.graph(hold_once), fields=fields) as (control, watch):
        watch.checkpoints(1)
        before = pids(control)
        scenario.gate.put("armed")
        until(
            lambda: "operator 'words' has been in user code for" in control.status.reason,
            "it is said",
            WAIT_S,
        )
        scenario.ends_right(control)
        assert pids(control) == before
        assert not resets(watch)


def test_with_local_recovery_it_is_none_either(scenario: Scenario) -> None:
    with scenario.running(scenario.graph(hold_once), recovery="local") as (control, watch):
        watch.checkpoints(1)
        scenario.gate.put("armed")
        until(lambda: scenario.gate.has("held"), "held", WAIT_S)
        scenario.ends_right(control)
        assert not resets(watch)


def test_the_status_names_the_lock_that_a_successor_waits_for(scenario: Scenario) -> None:
    """A worker that is cut off holds the lock of its part. Here, another process takes it."""
    with scenario.running(scenario.graph()) as (control, watch):
        watch.checkpoints(1)
        part = scenario.out / "part-w0001.tsv"
        taken = subprocess.Popen(
            ["flock", "--exclusive", str(part), "sh", "-c", "echo taken; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            waits = re.compile(rf"-> FLOCK .* {taken.pid} ")
            until(lambda: waits.search(Path("/proc/locks").read_text()), "it waits for the lock", WAIT_S)
            os.kill(pids(control)[1], signal.SIGKILL)
            assert taken.stdout is not None
            assert taken.stdout.readline() == b"taken\n"
            text = f"'out' waits for the lock of output {part}, held by process {taken.pid} of this host"
            until(lambda: text in control.status.reason, "it is said", WAIT_S)
            assert "worker 1 was lost" in control.status.reason, "and why it is started again"
            assert control.status.workers[1].waits.startswith("the lock of output")
        finally:
            taken.communicate()
        watch.wait(is_reset)
        until(lambda: not control.status.workers[1].waits, "it waits no more", WAIT_S)
        scenario.ends_right(control)
