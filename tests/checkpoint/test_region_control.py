"""RegionControl from plain threads: what it says before, after and when nothing can begin; where keys never
show.
"""

import logging
import math
import re

import pytest
import trio

from checkpoint import limits
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.links.messages import Counters
from checkpoint.core.records.divisions import DivisionFold
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.core.region import RegionSpec, RegionState, WorkerStatus, region_of_worker, worker_directory
from checkpoint.errors import HandshakeError, RegionFailedError
from checkpoint.link import connect_link
from dos_client import StoreNotReadyError
from dos_protocol.errors import BadNameError, BrokenConnectionError, LocalProtocolError
from tests.checkpoint.test_link import HELLO

KEY = bytes(range(32))
NOWHERE = "dos://127.0.0.1:1"


def a_spec(**fields):
    return RegionSpec(**{"name": "app", "workers": 1, "store_url": NOWHERE, "job_key": KEY, **fields})


class NoLauncher:
    """Launches nothing."""

    def __init__(self):
        self.started = []

    standbys = 0

    def start(self, worker, attempt, *, beside=False):
        self.started.append((worker, attempt))

    def cancel(self, worker, attempt):
        pass


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "a/b"}, BadNameError),
        ({"name": "x" * 125}, BadNameError),
        ({"workers": 0}, ValueError),
        ({"workers": 5000}, ValueError),
        ({"checkpoint_interval_s": 0.0}, ValueError),
        ({"drain_timeout_s": float("nan")}, ValueError),
        ({"reset_timeout_s": float("inf")}, ValueError),
        ({"max_consecutive_reset_attempts": -1}, ValueError),
    ],
)
def test_a_region_that_cannot_be_is_refused_before_anything_starts(fields, error) -> None:
    # EVIDENCE-OF: P-8
    with pytest.raises(error):
        a_spec(**fields)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda control: control.scale("3"), "a number of workers is an int, got '3'"),
        (lambda control: control.scale(2.5), "a number of workers is an int, got 2.5"),
        (lambda control: control.replace([[0]]), r"a worker is an int, got \[0\]"),
        (lambda control: control.savepoint("good", "41"), "a checkpoint is an int, got '41'"),
    ],
)
def test_a_number_that_is_none_is_refused_where_it_is_given_and_not_in_the_driver(call, what) -> None:
    with pytest.raises(LocalProtocolError, match=what):
        call(RegionControl(a_spec()))


TIMES = ("checkpoint_interval_s", "drain_timeout_s", "reset_timeout_s", "start_timeout_s")
BOUNDS = [
    ("workers", (1, limits.workers_max), (0, -1, limits.workers_max + 1)),
    (
        "retain",
        (limits.checkpoints_retained_min, limits.checkpoints_retained_max),
        (1, 0, limits.checkpoints_retained_max + 1),
    ),
    ("max_consecutive_reset_attempts", (0, 1), (-1,)),
    ("on_damaged", ("fail", "previous"), ("", "older")),
    ("recovery", ("global", "local"), ("", "regional")),
    ("trigger", ("periodic", "operator"), ("", "time")),
    *((name, (0.001, 1e9), (0, -1.0, math.inf, math.nan)) for name in TIMES),
]


@pytest.mark.parametrize(("name", "allowed", "refused"), BOUNDS, ids=[name for name, *_ in BOUNDS])
def test_a_setting_of_a_region_is_refused_beyond_its_bounds_and_named_with_its_value(
    name, allowed, refused
) -> None:
    for value in allowed:
        assert getattr(a_spec(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ValueError, match=f"^{name} must be|^a region has 1 to") as raised:
            a_spec(**{name: value})
        assert str(raised.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("both", "why"),
    [
        ({"restore": "3", "hand_over": True}, "exclude each other"),
        ({"recovery": "local", "without_checkpoints": True}, "local recovery needs checkpoints"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_together_only(both, why) -> None:
    for name, value in both.items():
        a_spec(**{name: value})
    with pytest.raises(ValueError, match=why):
        a_spec(**both)


def test_a_spec_shows_neither_its_key_nor_its_token() -> None:
    text = repr(a_spec(token=b"secret-token"))
    assert "secret-token" not in text
    assert str(KEY) not in text
    assert KEY.hex() not in text


def test_a_store_that_is_missing_fails_the_region_with_the_reason(monkeypatch, caplog) -> None:
    monkeypatch.setattr("dos_client.store.open_timeout_s", 0.2)
    caplog.set_level(logging.DEBUG, logger="dos.checkpoint")
    control, launcher = RegionControl(a_spec()), NoLauncher()
    with pytest.raises(LocalProtocolError, match="call listen"):
        _ = control.address
    assert control.status().state is RegionState.STARTING
    control.start(launcher)
    assert control.wait(20)
    assert control.status().state is RegionState.FAILED
    assert isinstance(control.exception(), StoreNotReadyError)
    assert launcher.started == []
    assert not control.wait_checkpoint(1, 0.1)
    with pytest.raises(RegionFailedError, match=r"the workers that it had: it is FAILED; .*127\.0\.0\.1:1"):
        control.scale(3)
    control.stop()
    control.reset()
    control.worker_ended(0, 1, None)
    assert KEY.hex() not in caplog.text
    (line,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert re.match("region [^:]+: failed: no server of dos://127.0.0.1:1 answers; ", line.getMessage())
    assert not line.exc_info, "it is no bug of ours, so a trace of our tasks would help nobody"


def test_stop_before_start_ends_at_once() -> None:
    control = RegionControl(a_spec())
    control.listen()
    control.stop()
    assert control.wait(10)
    assert control.status().state is RegionState.STOPPED
    assert control.exception() is None
    with pytest.raises(RegionFailedError, match="has the workers that it had: it is STOPPED; "):
        control.scale(3)


def test_the_listener_exists_before_the_region_begins_and_knows_its_own() -> None:
    control = RegionControl(a_spec())
    address = control.listen()
    assert control.listen() == address
    with pytest.raises(HandshakeError):
        trio.run(lambda: connect_link(*address, key=b"w" * 32, hello=HELLO))
    taken = RegionControl(a_spec(port_range=(address[1], address[1])))
    with pytest.raises(BrokenConnectionError, match="Address already in use"):
        taken.listen()
    control.stop()
    assert control.wait(10)


# --- values of a region -----------------------------------------------------------------------------------


def test_what_a_record_leaves_out_is_nothing() -> None:
    counters = Counters()
    assert (counters.step, counters.rows_in, counters.rows_out, counters.bytes_in) == (0, 0, 0, 0)
    assert (counters.lag_bytes, counters.busy_s) == (0, 0.0)
    assert (counters.exhausted, counters.waiting_for_store, counters.waiting_reason) == (False, False, "")
    status = WorkerStatus(0, "RUNNING")
    assert (status.attempt, status.pid, status.replayed_bytes, status.restore_seconds) == (0, 0, 0, 0.0)
    assert (status.host, status.scratch, status.error, status.counters) == ("", "", "", counters)
    assert SplitPosition(5) == SplitPosition(5, digest=0, done=False)
    assert DivisionFold().last_step == DivisionFold().after == 0


@pytest.mark.parametrize(("region", "worker"), [("a", 0), ("a.w0001", 2), ("a.b", 9999), ("a", 12345)])
def test_a_workers_directory_says_whose_it_is(region: str, worker: int) -> None:
    assert region_of_worker(worker_directory(region, worker)) == (region, worker)


@pytest.mark.parametrize(
    "name", [".w0001", "a", "w0001", "a.w001", "a.w000x", "a.coord", "a.w\u0661\u0661\u0661\u0661"]
)
def test_what_is_no_workers_directory_is_distinguished(name: str) -> None:
    assert region_of_worker(name) is None
