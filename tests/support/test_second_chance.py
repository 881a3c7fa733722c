"""A second chance for what failed beside others, and for nothing else."""

import subprocess
import sys
from pathlib import Path

from tests.support.second_chance import AGAIN_MAX, NEVER_AGAIN, SLOW, no_second_chance

ROOT = Path(__file__).resolve().parents[2]

FAILS_ONCE = """
from pathlib import Path

def test_in_a_hurry():
    marker = Path(__file__).with_name("ran")
    ran = marker.exists()
    marker.touch()
    assert ran

def test_patient():
    pass
"""
TAKES_TWO_RUNS = f"""
def test_late(record_property):
    record_property("{SLOW}", "not there after 60 s")
"""
FAILS_ALWAYS = """
def test_wrong():
    assert 1 == 2
"""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "xdist.plugin",
            "-p",
            "tests.support.second_chance",
            *arguments,
        ],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_passes_alone_is_named_and_what_fails_again_has_failed(tmp_path: Path) -> None:
    again = ["--alone", "--last-failed", "--last-failed-no-failures", "none"]
    (tmp_path / "test_hurry.py").write_text(FAILS_ONCE)
    assert pytest_in(tmp_path, "-n", "2").returncode == 1
    alone = pytest_in(tmp_path, *again)
    assert alone.returncode == 0, alone.stdout
    assert "FLAKY test_hurry.py::test_in_a_hurry" in alone.stdout
    assert "1 passed" in alone.stdout
    (tmp_path / "test_wrong.py").write_text(FAILS_ALWAYS)
    assert pytest_in(tmp_path).returncode == 1
    assert pytest_in(tmp_path, *again).returncode == 1


def test_a_test_that_took_a_second_run_of_its_own_reports_it(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(TAKES_TWO_RUNS)
    done = pytest_in(tmp_path, "-n", "1")
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_slow.py::test_late: not there after 60 s" in done.stdout


def test_what_judges_losses_has_no_second_chance(tmp_path: Path) -> None:
    for path in NEVER_AGAIN:
        assert (ROOT / path).is_dir() or path in ("tests/shells/", "tests/contract/")
        assert "no second chance" in no_second_chance(
            ["tests/journal/test_x.py::test_y", f"{path}test_x.py::test_y"]
        )
    folder = tmp_path / NEVER_AGAIN[0]
    folder.mkdir(parents=True)
    (folder / "test_wrong.py").write_text(FAILS_ALWAYS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert pytest_in(tmp_path, "-n", "2").returncode == 1
    refused = pytest_in(tmp_path, "--alone", "--last-failed").stderr
    assert "no second chance" in refused
    assert "assert 1 == 2" in refused, "the last that is read of a long run does not say what was wrong"


def test_many_failures_are_no_busy_machine() -> None:
    assert not no_second_chance([f"tests/journal/test_x.py::test_{n}" for n in range(AGAIN_MAX)])
    assert "at most" in no_second_chance([f"tests/journal/test_x.py::test_{n}" for n in range(AGAIN_MAX + 1)])
