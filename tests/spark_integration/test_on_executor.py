"""What an executor finds about itself before it runs our code, and says with its remedy."""

import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from spark_integration import on_executor, runner, versions
from spark_integration.core.options import parse_checkpoints, parse_options
from spark_integration.on_executor import Expected, executor_problem, expected_of_driver, make_task
from spark_integration.reading.decoding import LINES
from spark_integration.reading.inspection import CheckpointsTable, InsideReader, TablePart
from spark_integration.reading.origin import DosPartition
from spark_integration.reading.readers import DosReader, DosStreamReader
from tests.spark_integration.stored_data import pretended


def test_this_process_fits_itself() -> None:
    assert executor_problem(expected_of_driver()) is None


def test_another_python_is_named_with_both_versions() -> None:
    problem = executor_problem(Expected("3.99", expected_of_driver().versions))
    assert problem is not None
    assert f"Python is {on_executor.python_version()}" in problem
    assert "the driver has 3.99: set PYSPARK_PYTHON" in problem


@pytest.mark.parametrize("name", on_executor.SHARED)
def test_another_version_of_a_package_is_named(tmp_path: Path, name: str) -> None:
    said = with_first_on_path(
        pretended(tmp_path, name, "1.2.3"),
        "import sys, pickle; from spark_integration.on_executor import executor_problem;"
        " print(executor_problem(pickle.load(sys.stdin.buffer)))",
        pickle.dumps(expected_of_driver()),
    )
    ours = dict(zip(on_executor.SHARED, expected_of_driver().versions, strict=True))[name]
    assert said.startswith(f"{name} is 1.2.3, but the driver has {ours}: install the same version")


def test_a_task_of_the_source_reads_nothing_where_a_package_is_another(tmp_path: Path) -> None:
    options = parse_options({"path": "dos://nobody/logs", "content": "lines"})
    table = CheckpointsTable(parse_checkpoints({"path": "dos://nobody/words"}))
    readers = [
        DosReader(options, LINES),
        DosStreamReader(options, LINES),
        InsideReader(table, pa.schema([("checkpoint", pa.int64())])),
    ]
    parts = [DosPartition("a", ()), DosPartition("a", ()), TablePart(1)]
    said = with_first_on_path(
        pretended(tmp_path, "pandas", "2.2.9"),
        """
import pickle, sys
for reader, part in pickle.load(sys.stdin.buffer):
    try:
        list(reader.read(part))
    except Exception as error:
        print(type(error).__name__, error)
""",
        pickle.dumps(list(zip(readers, parts, strict=True))),
    )
    lines = said.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("ExecutorMismatchError executor mismatch on ")
        assert "pandas is 2.2.9, but the driver has" in line


def with_first_on_path(directory: Path, program: str, given: bytes = b"") -> str:
    """What a program prints in a process that finds this directory before all others."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(directory)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [
        ("pyspark", "3.5.1", "4.0 or newer, below 4.4"),
        ("pyspark", "4.4.0.dev1", "4.0 or newer, below 4.4"),
        ("pandas", "3.0.0", "2.2 or newer, below 3"),
        ("pyarrow", "17.0.0", "18 or newer"),
    ],
)
def test_a_version_that_is_not_supported_is_reported_before_it_is_imported(
    tmp_path: Path, name: str, version: str, needed: str
) -> None:
    said = with_first_on_path(
        pretended(tmp_path, name, version),
        """
import sys
for wanted in ("run", "register"):
    try:
        exec(f"from spark_integration import {wanted}")
    except Exception as error:
        print(type(error).__name__, error)
print(any(name in sys.modules for name in ("pyspark", "pandas", "pyarrow")))
""",
    )
    text = f"UnsupportedVersionError {name} is {version}, but this release of DOS needs {name} {needed}"
    assert said.splitlines() == [f"{text} (pip install 'dos-journal[spark]')"] * 2 + ["False"]


def test_what_is_supported_is_what_the_extra_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = [*extras["spark"], *extras["dataflow"]]  # spark includes dataflow
    for name, bounds in versions.SUPPORTED.items():
        end = f",<{bounds.end}" if bounds.end else ""
        assert f"{name}>={bounds.first}{end}" in asked
    versions.check_versions()


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
    assert "dos-journal is not installed, but the driver has" in said


@pytest.mark.parametrize(
    "used", ["import dos", "from spark_integration import run", "from spark_integration import register"]
)
@pytest.mark.parametrize("name", ["journal", "dos_protocol"])
def test_a_driver_whose_directory_has_a_module_of_our_name_names_the_file(
    tmp_path: Path, used: str, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("")
    done = subprocess.run([sys.executable, "-c", used], cwd=tmp_path, capture_output=True, text=True)
    assert f"ShadowedPackageError: package {name} is found in {tmp_path / f'{name}.py'}" in done.stderr
    assert "rename it or remove it from the path" in done.stderr
