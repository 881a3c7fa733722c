"""The checks of the installed packages, at the driver and on executors, and the function that runs there.

It is sent by value, so that it also runs where our packages are missing, old, or hidden by another
distribution with the same names. At its top it imports only the standard library, and nothing of ours before
`executor_problem` has found no problem. Its messages name the executor's host and the remedy.
"""

import importlib.util
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

DISTRIBUTION = "dos-journal"
PACKAGES = (
    "dos_protocol",
    "dos_tls",
    "dos_monitoring",
    "dos_client",
    "journal",
    "checkpoint",
    "dataflow",
    "spark_integration",
    "dos",
)
JAVA_MIN = 17
"""Of PySpark 4."""
_HAS_SPARK = frozenset({"SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYTHON_WORKER_FACTORY_SECRET"})
"""Variables of a process that connects to a server of Spark, or was started by a JVM."""
MISMATCH = "executor mismatch"
"""Begins every message of this file. By it the driver recognizes that a retry cannot help."""


NOT_INSTALLED = "not installed"
SHARED = (DISTRIBUTION, "pyspark", "pyarrow", "pandas", "numpy")
"""Distributions whose objects or formats are sent from the driver to the executors."""


class Expected(NamedTuple):
    """What executors must have, which is what the driver has: the versions of `SHARED`, in that order."""

    python: str
    versions: tuple[str, ...]


def installed_version(name: str) -> str:
    """Return the version of a distribution in this process, or "not installed"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def expected_of_driver() -> Expected:
    """Return what this process has, as requirements for executors."""
    return Expected(python_version(), tuple(map(installed_version, SHARED)))


def executor_problem(expected: Expected, *, any_version: bool = False) -> str | None:
    """Return why this process is unfit as an executor, with the remedy; None if it is fit.
    any_version: another version of this package is no problem: its processes agree on one when they connect.
    """
    if python_version() != expected.python:
        return (
            f"Python is {python_version()} ({sys.executable}), but the driver has {expected.python}:"
            f" set PYSPARK_PYTHON to the same version on every machine"
        )
    for name, version in zip(SHARED, expected.versions, strict=True):
        installed = installed_version(name)
        if installed != version and not (any_version and name == DISTRIBUTION and installed != NOT_INSTALLED):
            return (
                f"{name} is {installed}, but the driver has {version}:"
                f" install the same version for {sys.executable} on every machine"
            )
    return shadowed_package()


def shadowed_package() -> str | None:
    """Return a problem if one of our package names leads to a foreign package; imports none of them."""
    files: dict[str, Path] = {}
    for name in PACKAGES:
        file = _file_of(name)
        if file is None:
            return f"package {name} is missing: install {DISTRIBUTION} again for {sys.executable}"
        files[name] = file
    root = files["spark_integration"].parents[1]
    for name, file in files.items():
        if (file.parent, file.stem) != (root / name, "__init__"):
            return (
                f"package {name} is found in {file}, but ours are in {root}: another distribution or"
                f" directory hides it; rename it or remove it from the path (owner: {_owners(name)})"
            )
    return None


def check_packages() -> None:
    """Raise ShadowedPackageError if this process would import another package or module in place of ours."""
    problem = shadowed_package()
    if problem is not None:
        raise ShadowedPackageError(problem)


def java_problem(variables: Mapping[str, str] = os.environ) -> str:
    """Return why PySpark could start no session on this machine for want of Java, with the remedy; "" if it
    could, if PySpark is not installed, or if this process has a session elsewhere or was started by one.
    """
    if variables.keys() & _HAS_SPARK or installed_version("pyspark") == NOT_INSTALLED:
        return ""
    home = variables.get("JAVA_HOME")
    found = shutil.which("java", path=variables.get("PATH", os.defpath))
    if home and not os.access(Path(home, "bin", "java"), os.X_OK):
        why = f"JAVA_HOME is {home}, which has no bin/java"
    elif not home and found is None:
        why = "there is no java on the PATH, and JAVA_HOME is not set"
    elif old := _old_java(Path(home, "bin", "java") if home else Path(str(found))):
        why = old
    else:
        return ""
    return (
        f"{why}: a Spark session on this machine would end with JAVA_GATEWAY_EXITED. Install Java {JAVA_MIN}"
        " or newer (on Debian and Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME"
    )


def _old_java(java: Path) -> str:
    """Return that this Java is older than Spark needs, "" if it is not, or does not tell."""
    home = java.resolve().parent.parent  # of Java 8, the release file is above jre
    for release in (home / "release", home.parent / "release"):
        if release.is_file():
            version = re.search(r'JAVA_VERSION="(?:1\.)?([0-9]+)', release.read_text(errors="replace"))
            if version and int(version[1]) < JAVA_MIN:
                return f"{java} is Java {version[1]}"
            return ""
    return ""


def warn_without_java() -> None:
    """Log `java_problem`: the error that PySpark raises later names neither the cause nor a remedy."""
    if problem := java_problem():
        logging.getLogger("dos").warning("%s", problem)


def forget_replaced_version() -> None:
    """Forget our modules if another version of them was installed since this process imported them."""
    # Spark reuses the Python processes of tasks that have ended: a worker of the new version would run with
    # modules of both.
    runtime = sys.modules.get("checkpoint.runtime")
    if runtime is None or runtime.package_version() == installed_version(DISTRIBUTION):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    importlib.invalidate_caches()


class ShadowedPackageError(ImportError):
    """A package or module of another origin hides one of ours."""


def _file_of(name: str) -> Path | None:
    """Return the file, or member of an archive, that an import of the name would execute first."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def _owners(name: str) -> str:
    return ", ".join(metadata.packages_distributions().get(name, ["no distribution"]))


def make_task(
    expected: Expected, graph: bytes, fields: dict[str, Any]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function for `mapInArrow`: it checks the executor, runs the worker, returns its summary as
    one row. `graph`: a result of `shipping.ship`. `fields`: as for `worker_task.run`.
    """

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            pass  # the single row whose only purpose is that Spark calls this function
        problem = executor_problem(expected, any_version=True)
        if problem is not None:
            raise RuntimeError(f"{MISMATCH} on {platform.node()}: {problem}")
        forget_replaced_version()
        import pyarrow

        from spark_integration.worker_task import run

        yield pyarrow.RecordBatch.from_pydict({"summary": [run(graph, fields)]})

    return task
