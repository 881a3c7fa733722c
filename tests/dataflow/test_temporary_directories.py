"""The temporary directories of workers without a scratch directory: who removes them, and when."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dataflow.worker.directories import temporary_directory

HOLDS = """
import sys, pathlib
from dataflow.worker.directories import temporary_directory
class Owner: pass
owner = Owner()
path = temporary_directory(owner)
(path / "large").write_bytes(b"x" * 10)
print(path, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_files_of_a_worker_that_was_killed_are_removed_by_the_next_one_and_those_of_living_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLDS]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, env=environment, **pipes) as killed,
        subprocess.Popen(command, env=environment, **pipes) as living,
    ):
        assert killed.stdout is not None
        assert living.stdout is not None
        left, used = (Path(one.stdout.readline().strip()) for one in (killed, living) if one.stdout)
        first, second = set[int](), set[int]()  # any objects that can be referred to weakly
        own = temporary_directory(first)
        assert {left, used, own} == set(tmp_path.iterdir()), "all of them live"
        killed.kill()
        killed.wait()
        other = temporary_directory(second)
        assert {used, own, other} == set(tmp_path.iterdir())
        del first
        assert {used, other} == set(tmp_path.iterdir()), "removed with its owner"
        assert living.stdin is not None
        living.stdin.close()
        living.wait()
        assert {other} == set(tmp_path.iterdir()), "a process that ends removes its own"


def test_a_directory_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take it for one that was left, between the two calls."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, lock = tempfile.mkdtemp, fcntl.flock
    sweeps = ["open", "lock"]

    def make(**how: Any) -> str:
        path = made(**how)
        if "open" in sweeps:
            sweeps.remove("open")
            Path(path).rmdir()
        return path

    def locks(file: int, how: int) -> None:
        if "lock" in sweeps and how == fcntl.LOCK_EX:
            sweeps.remove("lock")
            (path,) = tmp_path.iterdir()
            path.rmdir()
        lock(file, how)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr(fcntl, "flock", locks)
    owner = set[int]()
    assert [temporary_directory(owner)] == [*tmp_path.iterdir()]
    assert not sweeps
