"""Installs older versions of PySpark below the environment, and runs tests with them.

A version has a directory of its own, which precedes the environment on Python's path. All other packages are
those of the environment.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("4.0.5", "4.1.4", "4.2.1")
"""The newest releases of the supported minor versions before the pinned one, the oldest first."""
_FOLDER = "tests/spark_integration"
TESTS = (
    *(f"{_FOLDER}/test_{name}_on_spark.py" for name in ("source", "merged", "inside", "sink")),
    *(f"{_FOLDER}/test_{name}.py" for name in ("through", "local_cluster")),
    *(f"{_FOLDER}/test_{name}.py" for name in ("frame", "frame_division", "frame_functions")),
    *(f"{_FOLDER}/test_{name}.py" for name in ("frame_modes", "frame_programs")),
    f"{_FOLDER}/test_gateway_requests.py",
    f"{_FOLDER}/test_source_restored.py::test_a_query_on_spark_ends_with_a_named_error_or_follows",
)
"""The main job, sources, the sink, `through`, frames, and queries with a gateway."""
INSTALL_S_MAX = 600


def installed(version: str) -> Path:
    """Return the directory of a version, which is installed if it is not yet.

    Raises CalledProcessError if pip fails. No half of a version is left.
    """
    place = Path(sys.prefix, "pyspark", version)
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            new = Path(folder, "new")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run(
                [*pip, "--no-deps", "--target", str(new), f"pyspark=={version}"],
                check=True,
                timeout=INSTALL_S_MAX,
            )
            new.rename(place)
    return place


def run_tests(version: str, folder: Path, *arguments: str, limit_s: float | None = None) -> int:
    """Run TESTS with a version, in an empty directory `folder`, and return pytest's exit code. `arguments`:
    further ones of pytest. Raises TimeoutExpired after `limit_s`; each test has a limit of its own.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_") and name not in ("SPARK_HOME", "JAVA_TOOL_OPTIONS")
    }
    variables |= {"PYTHONPATH": str(installed(version)), "PYSPARK_PYTHON": sys.executable}
    # PySpark 4.0 leaves the sockets of results to the garbage collector
    sockets = ("-W", "ignore:unclosed <socket.socket:ResourceWarning")
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sockets),
            *("--basetemp", str(folder), *TESTS, *arguments),
        ],
        cwd=Path(__file__).parents[2],
        env=variables,
        timeout=limit_s,
    ).returncode
