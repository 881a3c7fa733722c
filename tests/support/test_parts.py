"""What the two parts of all tests run, and how their figures become one closing line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import parts

ROOT = Path(__file__).resolve().parents[2]
MARKED = """
import pytest
from tests.support.parts import with_long

@pytest.mark.parametrize("seed", with_long([1], [2, 3], [4]))
def test_seeds(seed):
    pass

@pytest.mark.long(ci=False)
def test_for_hours():
    pass

def test_fails_beside_others(request):
    assert request.config.getoption("alone")
"""
OPTIONS = ("-p", "xdist.plugin", "-p", "tests.support.parts", "-p", "tests.support.second_chance")


def pytest_in(folder: Path, *arguments: str) -> list[str]:
    """Run pytest there. Return the names of the tests that ran."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-o", "markers=long", *OPTIONS, *arguments],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            parts.TOTALS: str(folder / "totals"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return sorted(
        {line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.endswith("%]")}
    )


def test_each_part_runs_what_the_other_leaves_out_and_a_named_test_always_runs(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    fails = "test_fails_beside_others"
    assert pytest_in(tmp_path) == [fails, "test_seeds[1]"]
    assert pytest_in(tmp_path, "--rest") == ["test_seeds[2]", "test_seeds[3]"]
    assert len(pytest_in(tmp_path, "--all")) == 6
    assert pytest_in(tmp_path, "test_marked.py::test_for_hours") == ["test_for_hours"]


def test_the_figures_of_both_parts_are_added_and_what_passed_alone_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    monkeypatch.setenv(parts.TOTALS, str(tmp_path / "totals"))
    pytest_in(tmp_path)
    assert json.loads((tmp_path / "totals").read_text())["failed"] == 1
    assert parts.main(["1", "0"]) == 1
    assert "1 failed, 1 passed in " in capsys.readouterr().out
    pytest_in(tmp_path, "--alone", "--last-failed")
    pytest_in(tmp_path, "--rest")
    assert parts.main(["0", "0"]) == 0
    assert capsys.readouterr().out.startswith("4 passed in ")


def test_neither_part_hides_a_failure_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "totals").touch()
    monkeypatch.setenv(parts.TOTALS, str(tmp_path / "totals"))
    assert [parts.main([short, rest]) for short, rest in ("00", "10", "02")] == [0, 1, 2]
    assert "./run test ended with 0, ./run test --rest with 2\n" in capsys.readouterr().out
