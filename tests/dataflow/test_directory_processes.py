"""Directories of operators on real servers and real worker processes, killed in the middle of a change."""

import json
import random
from pathlib import Path

import pytest
import trio
from typer.testing import CliRunner

from checkpoint.chains.manifest_log import read_manifest
from checkpoint.core.region import RegionState, ResetReport, worker_directory
from checkpoint.errors import RegionFailedError
from dataflow.limits import WorkerLimits
from dos_cli.main import app
from dos_client import open_store
from journal import AtCheckpoint, AtStep, restore
from tests.dataflow.filing import Diary, MovingDiary, diary_of, together
from tests.dataflow.test_directory import numbered
from tests.dataflow.test_region_in_one_thread import write_files
from tests.dataflow.test_region_processes import WAIT_S, finished, kill, running
from tests.journal.journaled_files import files

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


# EVIDENCE-OF: P-7
def test_files_survive_workers_that_are_killed_in_a_change_and_lose_their_disks(
    shared_store: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    rows = [(rng.choice(["ape", "bee", "cow"]), n) for n in range(6_000)]
    rows[1_000] = ("die", 1_000)
    texts = ["".join(f"{word} {n}\n" for word, n in rows if (word < "c") is one) for one in (True, False)]
    paths = write_files(tmp_path, texts)
    died, hurry = tmp_path / "died", tmp_path / "hurry"
    graph = numbered(paths, tmp_path / "out", Diary(str(died), str(hurry)))
    small = WorkerLimits(step_bytes_max=1024, batch_bytes_max=1024, snapshot_bytes_min=32 * 1024)
    with running(graph, shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.wait(lambda event: isinstance(event, ResetReport))
        assert died.exists(), "it killed itself between two changes"
        kill(control, 0, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        hurry.touch()
        assert finished(control), control.status
        assert control.status.incarnation == 3
    scratches = [tmp_path / "scratch" / f"w{worker:04d}" / "directories" for worker in range(2)]
    places = [place for scratch in scratches for place in scratch.iterdir()]
    here = [files(place / "3" / "own") for place in places]
    assert together(here) == diary_of(rows)
    assert [[path.name for path in place.iterdir()] for place in places] == [["3"], ["3"]]
    assert trio.run(of_the_last_checkpoint, shared_store, tmp_path) == here
    shown = CliRunner().invoke(app, ["checkpoint", "show", shared_store, tmp_path.name, "--json"])
    assert shown.exit_code == 0, shown.output
    at = json.loads(shown.stdout)["workers"][0]["directories"]["own"]["size"]
    chain = f"{shared_store}/{worker_directory(tmp_path.name, 0)}/files-own"
    listed = CliRunner().invoke(app, ["journal", "files", chain, "--at", str(at), "--json"])
    assert listed.exit_code == 0, listed.output
    assert {one["path"]: one["bytes"] for one in json.loads(listed.stdout)["files"]} == {
        name: len(data) for name, data in here[0].items()
    }


def test_files_go_to_other_numbers_of_workers_running_and_stopped(shared_store: str, tmp_path: Path) -> None:
    """The second worker dies after the change, so its files are made again from the new checkpoint."""
    rng = random.Random(8)
    words = ["ape", "bee", "cow", "dog", "elk", "fox"]
    rows = [(rng.choice(words), n) for n in range(12_000)]
    texts = ["".join(f"{word} {n}\n" for word, n in rows if (word < "d") is one) for one in (True, False)]
    paths = write_files(tmp_path, texts)
    hurry, fails = tmp_path / "hurry", tmp_path / "fails"
    graph = numbered(paths, tmp_path / "out", MovingDiary("", str(hurry), str(fails)))
    small = WorkerLimits(step_bytes_max=512, batch_bytes_max=512, snapshot_bytes_min=32 * 1024)
    with running(graph, shared_store, tmp_path, workers=2, worker_limits=small) as (control, watch):
        watch.checkpoints(2)
        assert control.scale(3, WAIT_S).workers == 3
        kill(control, 1, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport))
        control.checkpoint(WAIT_S)
        fails.touch()
        with pytest.raises(RegionFailedError, match="redistribute_directory: ValueError: no room for"):
            control.scale(2, WAIT_S)
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
    fails.unlink()
    assert len(trio.run(of_the_last_checkpoint, shared_store, tmp_path)) == 3, (
        "the former layout is untouched"
    )
    with running(graph, shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.checkpoints(1)
        assert len(control.status.workers) == 3
    hurry.touch()
    with running(graph, shared_store, tmp_path, workers=1, worker_limits=small) as (control, _):
        assert finished(control), control.status
    found = trio.run(of_the_last_checkpoint, shared_store, tmp_path)
    assert len(found) == 1
    assert found[0] == diary_of(rows)


async def of_the_last_checkpoint(url: str, folder: Path) -> list[dict[str, bytes]]:
    """The files of each worker, made of the store alone."""
    region, found = folder.name, []
    async with open_store(url) as store:
        checkpoint = (await read_manifest(store, region)).last
        assert checkpoint is not None
        for worker, part in checkpoint.workers.items():
            into = folder / f"of-the-store-{checkpoint.number}-{worker}"
            directory = worker_directory(region, worker)
            await restore(into, store, directory, "files-own", at=part.directories["own"])
            found.append(files(into))
            for other in (AtCheckpoint(checkpoint.number), AtStep(checkpoint.step)):
                again = folder / f"of-the-store-{checkpoint.number}-{worker}-{other}"
                await restore(again, store, directory, "files-own", at=other)
                assert files(again) == files(into)
    return found
