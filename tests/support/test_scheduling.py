"""Which process runs which test, if one of them dies."""

from pathlib import Path

from tests.support.test_second_chance import pytest_in

CONFTEST = "from tests.conftest import pytest_xdist_make_scheduler"
TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    with open({ran!r}, "a") as ran:
        ran.write(f"{{number}} ")
    if number == {dies}:
        os._exit(1)
"""


def run(folder: Path, *, dies: int) -> tuple[int, str, list[str]]:
    """Exit code and output of pytest in two processes, and the tests that ran, once for each time."""
    ran = folder / "ran"
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS.format(ran=str(ran), dies=dies))
    done = pytest_in(folder, "-n", "2", "-p", "no:cacheprovider", "test_it.py")
    return done.returncode, done.stdout, sorted(ran.read_text().split())


def test_a_test_that_ends_its_process_fails_once_and_the_others_run(tmp_path: Path) -> None:
    """Also the last one: pytest-xdist would run it again and again in new processes."""
    for dies in (2, 5):
        folder = tmp_path / str(dies)
        folder.mkdir()
        code, output, ran = run(folder, dies=dies)
        assert code == 1, output
        assert "1 failed, 5 passed" in output
        assert f"test_one[{dies}]" in output
        assert ran == list("012345")
