"""The supported versions of Spark's packages, checked before any of them is imported.

Only the standard library may be imported at the top, because the faulty package may be the one to import. The
bounds are those of the extras `spark` and `dataflow` in pyproject.toml; a test compares them.
"""

import re
from importlib import metadata
from typing import Final, NamedTuple


class VersionBounds(NamedTuple):
    """Versions from `first` on, below `end` (None: no upper bound)."""

    first: str
    end: str | None

    def __str__(self) -> str:
        return f"{self.first} or newer" + (f", below {self.end}" if self.end else "")


SUPPORTED: Final = {
    "pyspark": VersionBounds("4.0", "4.4"),
    "pandas": VersionBounds("2.2", "3"),
    "pyarrow": VersionBounds("18", None),
}

FILTER_PUSHDOWN: Final = "4.1"
"""The first PySpark that passes filters to readers."""
ARROW_STREAM_WRITER: Final = "4.1"
"""The first PySpark that has a class of its own for writers of streams that get Arrow batches."""
ADMISSION_CONTROL: Final = "4.2"
"""The first PySpark that names the beginning of a micro-batch when it requests its end from a reader."""
PROCESSOR_OF_ROWS: Final = "4.1"
"""The first PySpark whose `transformWithState` gives rows to processors."""

ARROW_TIMEZONE: Final = "4.2"
"""The first PySpark whose conversion of columns to Arrow needs a time zone; before, it was always UTC."""


def check_versions() -> None:
    """Raise UnsupportedVersionError, which names the package, its version, and the supported versions."""
    for name, bounds in SUPPORTED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if version is None or not _within(version, bounds):
            from spark_integration.errors import UnsupportedVersionError

            found_text = "is not installed" if version is None else f"is {version}"
            raise UnsupportedVersionError(
                f"{name} {found_text}, but this release of DOS needs {name} {bounds}",
                remedy="pip install 'dos-journal[spark]'",
            )


def pyspark_has(feature: str) -> bool:
    """Return whether the installed PySpark is of version `feature` or newer."""
    return _numbers(metadata.version("pyspark")) >= _numbers(feature)


def need_pyspark(feature: str, what: str, remedy: str) -> None:
    """Raise UnsupportedVersionError unless PySpark is new enough for `what`. remedy: for older ones."""
    if not pyspark_has(feature):
        from spark_integration.errors import UnsupportedVersionError

        raise UnsupportedVersionError(
            f"{what} needs PySpark {feature} or newer, but {metadata.version('pyspark')} is installed",
            remedy=f"install PySpark {feature} or newer; or {remedy}",
        )


def _within(version: str, bounds: VersionBounds) -> bool:
    found = _numbers(version)
    return _numbers(bounds.first) <= found and (bounds.end is None or found < _numbers(bounds.end))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version: 4.3.0.dev1 -> (4, 3, 0)."""
    release = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(number) for number in release[1].split(".")) if release else ()
