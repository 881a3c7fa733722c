"""A region whose last checkpoints are damaged on the disks of all servers: it fails by name, or goes back.

The servers and the workers are threads of this process.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import FellBack, RegionSpec, RegionState, ResetReport
from checkpoint.errors import CheckpointDamagedError
from dataflow import limits
from dataflow.worker.spec import WorkerSpec
from dos_client import init_store
from journal import parse_segment_name
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import SMALL_STEPS, WAIT_S, Watch, hurry, slow_word_count, texts
from tests.dataflow.test_region_snapshots import ThreadLauncher
from tests.dataflow.test_region_trim import dos
from tests.dataflow.test_rescaled_regions import counts_in
from tests.dos_client.support import ThreadServer, thread_servers, url_of
from tests.support.polling import until

__all__ = ["texts"]
pytestmark = pytest.mark.process
NAME = "words"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "damage_look_s", 0.1)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ThreadServer]]:
    with thread_servers(tmp_path, 3) as three:
        trio.run(init_store, url_of(three))
        yield three


@contextmanager
def region(
    servers: list[ThreadServer], paths: list[Path], out: Path, **fields: Any
) -> Iterator[tuple[RegionControl, Watch]]:
    graph, watch = slow_word_count(paths, out), Watch()
    spec = RegionSpec(
        name=NAME,
        workers=2,
        store_url=url_of(servers),
        job_key=b"k" * 32,
        checkpoint_interval_s=0.1,
        retain=100,
        **graph.plan().stored(),
        **fields,
    )
    control = RegionControl(spec, observer=watch)
    address = control.listen()

    def spec_of(worker: int, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            region=NAME,
            application=NAME,
            worker=worker,
            attempt=attempt,
            coordinator=address,
            job_key=spec.job_key,
            graph=graph,
            store_url=spec.store_url,
            limits=SMALL_STEPS,
        )

    control.start(ThreadLauncher(spec_of, control))
    try:
        yield control, watch
    finally:
        control.stop()
        assert control.wait(WAIT_S)


def flip(servers: list[ThreadServer], worker: int, above: int) -> list[str]:
    """Flip a bit in every segment of a worker's state and steps above an epoch, on every disk. The chains."""
    flipped = set()
    for server in servers:
        for path in (server.data / "d" / f"{NAME}.w{worker:04d}").iterdir():
            segment = parse_segment_name(path.name)
            if segment is None or segment.epoch <= above:
                continue
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            with path.open("r+b") as file:
                file.write(content)
            flipped.add(segment.chain)
    return sorted(flipped)


def test_a_region_with_damaged_checkpoints_fails_by_name_or_goes_back_to_the_newest_whole_one(
    servers: list[ThreadServer], texts: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths, out = texts[:12], tmp_path / "out"
    with region(servers, paths, out) as (control, watch):
        watch.checkpoints(1)
    before, epoch = control.status().last_checkpoint, control.status().incarnation
    with region(servers, paths, out) as (control, watch):
        watch.checkpoints(1)
    last = control.status().last_checkpoint
    assert flip(servers, 0, epoch) == ["state", "steps"]

    with region(servers, paths, out) as (control, _):
        assert control.wait(WAIT_S), control.status()
    error = control.exception()
    assert isinstance(error, CheckpointDamagedError), error
    assert f"checkpoint {last} is damaged: chain state of worker 0 up to position" in str(error)
    assert f"checkpoint {before}, which is whole: `dos region restore URL words" in error.remedy
    command = ["region", "restore", url_of(servers), NAME, "--dry-run", "--verify", "--json", "--to"]
    assert json.loads(dos(*command, f"checkpoint:{before}").stdout)["damaged"] == []
    damaged = dos(*command, f"checkpoint:{last}")
    assert damaged.exit_code == 1
    assert {row["chain"] for row in json.loads(damaged.stdout)["damaged"]} == {"state", "steps"}

    servers[2].kill()
    with region(servers, paths, out, on_damaged="previous") as (control, watch):
        waits = "words.w0000 waits: words.w0000 seems damaged, and these members may have what is missing"
        until(lambda: waits in caplog.text, "it waits for the member", WAIT_S)
        assert control.status().last_checkpoint == last
        servers[2].restart()
        watch.checkpoints(1)
        (fell_back,) = [event for event in watch.events if isinstance(event, FellBack)]
        assert (fell_back.last, fell_back.checkpoint) == (last, before)
        assert str(fell_back) == control.status().fell_back
        control.reset()  # the damaged segments are still there
        watch.wait(lambda event: isinstance(event, ResetReport))
        hurry(out)
        assert control.wait(WAIT_S), control.status()
        assert control.status().state is RegionState.FINISHED
    assert counts_in(out) == dict(true_counts(paths, 3))
