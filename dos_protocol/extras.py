"""The optional libraries, and the extra of the distribution that installs each.

The server, the client, journals and the `dos` command need none of them. What does imports its library where
it uses it, and raises MissingExtraError if the library is not installed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dos_protocol.errors import DosError

DISTRIBUTION: Final = "dos-journal"
EXTRA_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cloudpickle": "dataflow",
        "datasketches": "dataflow",
        "lmdb": "dataflow",
        "numpy": "dataflow",
        "pandas": "dataflow",
        "pyarrow": "dataflow",
        "py4j": "spark",
        "pyspark": "spark",
        "boto3": "s3",
        "botocore": "s3",
        "sqlalchemy": "sql",
        "matplotlib": "plots",
        "hypercorn": "ui",
        "starlette": "ui",
        "opentelemetry": "otel",
    }
)
"""Top-level module -> extra."""


class MissingExtraError(DosError, ModuleNotFoundError):
    """A library is not installed that only an extra installs. Nothing was done. `name`: the module."""


def missing_extra(error: ModuleNotFoundError, user: str) -> MissingExtraError | None:
    """Return the error that names the extra; None if no extra has the module that was not found.

    user: what needs the module, for the message.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(module)
    if extra is None:
        return None
    found = MissingExtraError(
        f"{user} needs the library {module}, which is not installed", remedy=install_command(extra)
    )
    found.name = error.name
    return found


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
