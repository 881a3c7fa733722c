"""What the launcher does with stand-bys: when it submits them, and which one becomes a worker."""

import logging
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec, RegionState, ScalingStatus
from spark_integration import launcher as module
from spark_integration.core.session_checks import DECOMMISSIONING
from spark_integration.launcher import Executors, Standbys, StandbySettings, standby_tag

SPEC = RegionSpec(name="r", workers=2, store_url="dos://h", job_key=b"k" * 32)


class Surroundings:
    """A region, its stand-by links, and the executors: what `Standbys` asks. Times pass by `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.status = replace(RegionControl(SPEC).status(), state=RegionState.RUNNING)
        self.linked: list[int] = []
        self.accepts = True
        self.free = 9
        self.places: dict[str, str] = {}
        self.left: set[str] = set()
        self.submitted: list[int] = []
        self.canceled: list[str] = []
        control = SimpleNamespace(
            status=lambda: self.status,
            standbys=SimpleNamespace(numbers=lambda: self.linked, assign=self._assign),
        )
        executors = SimpleNamespace(
            leaving=lambda tags: self.left.intersection(tags), hosts=self._hosts, forget=lambda tag: None
        )
        self.standbys = Standbys(
            "r",
            StandbySettings(2, cast("RegionControl", control), self._shortage),
            cast("Executors", executors),
            submit=self.submitted.append,
            cancel=self.canceled.append,
        )

    def _assign(self, number: int, worker: int, attempt: int) -> bool:
        self.linked.remove(number)
        return self.accepts

    def _hosts(self, tags: Collection[str]) -> set[str]:
        return {self.places[tag] for tag in tags}

    def _shortage(self) -> str | None:
        if self.free < 0:
            raise RuntimeError("the SparkContext is stopped")
        self.free -= 1
        return None if self.free >= 0 else "use local[9]"

    def tick(self, times: int = 1) -> list[int]:
        """Let half a second pass, as often. Return all that were submitted."""
        for _ in range(times):
            self.now += 0.5
            self.standbys.tick()
        return self.submitted


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    subject = Surroundings()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: subject.now))
    return subject


def tag(number: int) -> str:
    return standby_tag("r", number)


def test_another_spark_that_cannot_say_which_executors_leave_is_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was logged at DEBUG only, so the draining of executors would have ended without a word."""
    context = SimpleNamespace(_jsc=object(), getConf=lambda: {DECOMMISSIONING: "true"})
    executors = Executors(cast("Any", SimpleNamespace(sparkContext=context)))
    for _ in range(2):
        assert executors.leaving(["a"]) == executors.hosts(["a"]) == set()
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [one.partition(":")[0] for one in warned] == [
        "cannot determine which executors leave",
        "cannot determine the hosts of tasks",
    ]
    caplog.clear()
    context._jsc = None  # as SparkContext.stop does
    again = Executors(cast("Any", SimpleNamespace(sparkContext=context)))
    assert again.leaving(["a"]) == set()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]


def test_they_are_submitted_one_by_one_while_the_region_runs_and_nothing_starts(around: Surroundings) -> None:
    around.status = replace(around.status, state=RegionState.RESTORING)
    assert around.tick() == []
    around.status = replace(around.status, state=RegionState.RUNNING)
    around.status = replace(around.status, scaling=ScalingStatus(3, "launching workers", 0.0))
    assert around.tick() == []
    around.status = replace(around.status, scaling=None)
    assert around.tick() == [1]
    assert around.tick(3) == [1, 2]


def test_the_one_that_has_waited_longest_is_used_and_its_job_is_the_attempts(around: Surroundings) -> None:
    around.tick(2)
    assert not around.standbys.count
    assert not around.standbys.assign(0, 1, [])
    around.linked = [7, 2, 1]
    assert around.standbys.assign(0, 1, [])
    assert (around.standbys.tag_of(0, 1), around.standbys.tag_of(0, 2)) == (tag(2), None)
    assert around.standbys.ended(2, "killed") == (0, 1)
    assert around.standbys.tag_of(0, 1) is None
    assert around.canceled == []


def test_one_that_does_not_accept_is_canceled_and_the_next_one_is_used(around: Surroundings) -> None:
    around.tick(2)
    around.linked, around.accepts = [1, 2], False
    assert not around.standbys.assign(0, 1, [])
    assert around.canceled == [tag(1), tag(2)]


def test_the_host_of_a_rejected_attempt_is_avoided(around: Surroundings) -> None:
    around.tick(2)
    around.linked = [1, 2]
    around.places = {"rejected": "a", tag(1): "a", tag(2): "b"}
    assert around.standbys.assign(0, 1, ["rejected"])
    assert not around.standbys.assign(0, 2, ["rejected"])
    assert (around.standbys.tag_of(0, 1), around.canceled) == (tag(2), []), "the other one still waits"


def test_one_on_an_executor_that_leaves_ends_and_is_replaced(around: Surroundings) -> None:
    around.tick(2)
    around.linked = [1, 2]
    around.left = {tag(1)}
    assert around.standbys.assign(0, 1, [])
    assert (around.standbys.tag_of(0, 1), around.canceled) == (tag(2), [tag(1)])
    around.tick(4)
    around.left = {tag(4)}
    around.standbys.look_for_leaving()
    assert around.canceled[-1] == tag(4)
    assert around.tick(1)[-1] == 5


def test_before_a_worker_those_that_do_not_wait_yet_are_canceled(around: Surroundings) -> None:
    around.tick(2)
    around.linked = [1]
    around.standbys.worker_submitted()
    assert around.canceled == [tag(2)]
    around.standbys.close()
    assert around.canceled == [tag(2), tag(1)]
    assert not around.standbys.is_idle


def test_a_shortage_is_told_once_and_a_stopped_session_not_at_all(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    around.free = 1
    assert around.tick(9) == [1]
    text = "region r: runs without a further stand-by: use local[9]"
    assert [one.getMessage() for one in caplog.records] == [text]


def test_the_end_of_one_that_waited_is_told_and_no_attempts_end(
    around: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dos.spark_integration")
    around.tick(2)
    assert around.standbys.ended(1, "killed") is None
    assert around.standbys.ended(2, None) is None
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "region r: stand-by 1 ended: killed"),
        ("DEBUG", "region r: stand-by 2 ended: it is not needed"),
    ]
    around.status = replace(around.status, state=RegionState.FINISHED)
    assert around.tick(9) == [1, 2]


def test_a_region_without_stand_bys_asks_nothing() -> None:
    none: Any = None
    standbys = Standbys("r", None, Executors.__new__(Executors), submit=none, cancel=none)
    standbys.tick()
    assert not standbys.count
    assert standbys.is_idle
