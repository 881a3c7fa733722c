"""What an executor finds about itself before it runs our code, and says with its remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from spark_integration import on_executor, runner
from spark_integration.on_executor import Expected, executor_problem, expected_of_driver, make_task


def test_this_process_fits_itself() -> None:
    assert executor_problem(expected_of_driver()) is None


def test_another_python_is_named_with_both_versions() -> None:
    problem = executor_problem(Expected("3.99", expected_of_driver().version))
    assert problem is not None
    assert f"Python is {on_executor.python_version()}" in problem
    assert "the driver's is 3.99: set PYSPARK_PYTHON" in problem


def test_another_version_of_our_distribution_is_named() -> None:
    problem = executor_problem(Expected(on_executor.python_version(), "9.9.9"))
    assert problem is not None
    assert "the driver's is 9.9.9: install the same version" in problem


def test_a_package_of_the_same_name_from_elsewhere_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "journal" / "__init__.py"
    other.parent.mkdir()
    other.touch()
    program = "from spark_integration.on_executor import shadowed_package; print(shadowed_package())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"package journal is found in {tmp_path}" in done.stdout
    assert "hides it" in done.stdout


def run_where_we_are_not_installed(task: bytes) -> str:
    """Unpickle and call the task in a process that cannot import any of our packages."""
    program = f"""
import pickle, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {on_executor.PACKAGES!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from importlib import metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
try:
    list(pickle.load(sys.stdin.buffer)([]))
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], input=task, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_the_check_itself_runs_where_none_of_our_packages_is_installed() -> None:
    assert runner  # importing it makes the module travel by value
    said = run_where_we_are_not_installed(cloudpickle.dumps(make_task(expected_of_driver(), b"", {})))
    assert said.startswith(on_executor.MISMATCH)
    assert "dos-journal is not installed and the driver's is" in said
