"""What runs on an executor before our packages are trusted there, and then starts the worker.

Rules of this file: it is sent by value, so it runs also where our packages are missing, old, or hidden by
another distribution with the same names; nothing is imported at its top but the standard library, and nothing
of ours before `executor_problem` has found none. Whatever it finds is said with the executor's host and the
remedy.
"""

import importlib.util
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

DISTRIBUTION = "dos-journal"
PACKAGES = ("dos_protocol", "dos_client", "journal", "checkpoint", "dataflow", "spark_integration")
MISMATCH = "executor mismatch"
"""Opens every message of this file; by it the driver knows that trying again cannot help."""


SHARED = (DISTRIBUTION, "pyspark", "pyarrow", "pandas", "numpy")
"""Distributions whose objects or formats go from the driver to the executors."""


class Expected(NamedTuple):
    """What the driver has, and the executors must have: of `SHARED` the versions, in that order."""

    python: str
    versions: tuple[str, ...]


def installed_version(name: str) -> str:
    """The version of a distribution here, or a text that says there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def expected_of_driver() -> Expected:
    """What this process has, as what executors must have."""
    return Expected(python_version(), tuple(map(installed_version, SHARED)))


def executor_problem(expected: Expected) -> str | None:
    """What is wrong with this process as an executor, with the remedy; None when it fits."""
    if python_version() != expected.python:
        return (
            f"Python is {python_version()} ({sys.executable}) and the driver's is {expected.python}:"
            f" set PYSPARK_PYTHON to the same version on every machine"
        )
    for name, version in zip(SHARED, expected.versions, strict=True):
        here = installed_version(name)
        if here != version:
            return (
                f"{name} is {here} and the driver's is {version}:"
                f" install the same version for {sys.executable} on every machine"
            )
    return shadowed_package()


def shadowed_package() -> str | None:
    """Whether one of our package names leads to another distribution's package. Imports none of them."""
    places = {name: _place_of(name) for name in PACKAGES}
    home = places["spark_integration"]
    for name, place in places.items():
        if place is None:
            return f"package {name} cannot be found: install {DISTRIBUTION} again for {sys.executable}"
        if place != home:
            return (
                f"package {name} is found in {place}, and ours are in {home}: another distribution or"
                f" directory hides it; take it off the path (owner: {_owners(name)})"
            )
    return None


def _place_of(name: str) -> Path | None:
    """The directory (or archive) that holds the package."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent.parent


def _owners(name: str) -> str:
    return ", ".join(metadata.packages_distributions().get(name, ["no distribution"]))


def make_task(
    expected: Expected, graph: bytes, fields: dict[str, Any]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow`: checks the executor, runs the worker, returns its summary as one row.

    `graph` is what `shipping.ship` made; `fields` are the other fields of the worker's specification.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            pass  # the one row that makes Spark call us
        problem = executor_problem(expected)
        if problem is not None:
            raise RuntimeError(f"{MISMATCH} on {platform.node()}: {problem}")
        import pyarrow

        from spark_integration.worker_task import run

        yield pyarrow.RecordBatch.from_pydict({"summary": [run(graph, fields)]})

    return task
