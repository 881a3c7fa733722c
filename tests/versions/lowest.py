"""Runs tests with the lowest versions that `pyproject.toml` allows, in an environment of their own.

Every direct dependency of the product has its lower bound; what these need in turn is what pip finds for
them. PySpark is left out: `older_spark` runs its tests with each supported version. Tools of the tests are
those of `constraints.txt`.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("dataflow", "s3", "sql", "ui", "plots", "otel")
TOOLS = (
    *("construct", "flask", "flask-cors", "hypothesis", "moto", "psutil", "psycopg", "psycopg-binary"),
    *("py-partiql-parser", "pytest", "pytest-timeout", "pytest-trio", "pytest-xdist", "pyyaml", "setuptools"),
)
TESTS = (
    *(
        "tests/dos_protocol",
        "tests/dos_tls",
        "tests/dos_monitoring",
        "tests/dos_cli",
        "tests/dos_ui/test_what_is_shown.py",
    ),
    *(
        "tests/dos_ui/test_hostile_requests.py",
        "tests/dos_server/test_tokens.py",
        "tests/dos_client/test_metrics.py",
    ),
    *(f"tests/dos_client/test_{name}.py" for name in ("connection", "store")),
    *(f"tests/journal/test_{name}.py" for name in ("archive", "golden", "plotting", "record")),
    *(
        f"tests/dataflow/test_{name}.py"
        for name in ("aggregate", "functions", "map_state", "operators_exactly")
    ),
    *(
        f"tests/dataflow/test_{name}.py"
        for name in ("parquet_sink", "regions", "s3_sink", "sql_sink", "value_bytes")
    ),
)
"""For each direct dependency, the tests of what uses it."""
INSTALL_S_MAX = 1200


def lower_bounds() -> dict[str, str]:
    """Return the lowest allowed version of each direct dependency of the product but PySpark."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [
        *project["dependencies"],
        *(one for extra in EXTRAS for one in project["optional-dependencies"][extra]),
    ]
    return dict(_bound(Requirement(text)) for text in texts)


def _bound(requirement: Requirement) -> tuple[str, str]:
    (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return requirement.name, bound


def _pinned(names: tuple[str, ...]) -> Iterator[str]:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    known = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    for name in names:
        yield f"{name}=={known[name]}"


def installed() -> Path:
    """Return the Python of the environment, which is made if it is not there. Raises CalledProcessError."""
    place = Path(sys.prefix, "lowest")
    wanted = "\n".join([*(f"{name}=={version}" for name, version in lower_bounds().items()), *_pinned(TOOLS)])
    stamp, python = place / "made-from", place / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted.splitlines()], check=True, timeout=INSTALL_S_MAX)
        product = [*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        subprocess.run(product, check=True, timeout=INSTALL_S_MAX)
        stamp.write_text(wanted)
    return python


def run_lowest(folder: Path, *arguments: str) -> int:
    """Run TESTS with the lowest versions. folder: an empty directory. arguments: further ones of pytest.
    Return its exit code.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(installed()), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder)]
    command += [
        "--timeout",
        "600",
        "-W",
        "ignore::DeprecationWarning",
    ]  # newer libraries deprecate what the old ones call
    return subprocess.run([*command, *TESTS, *arguments], cwd=ROOT, env=variables).returncode
