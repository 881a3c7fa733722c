"""Imports on first use: public names of packages (PEP 562), and libraries that only an extra installs.

Spark starts several Python processes for each query; each pays only for the imports it uses
(docs/decisions/0170). A package lists its names once, as imports for type checkers, which `lazy_names` reads
from its source:

    if TYPE_CHECKING:
        from shop.orders import Order as Order
    else:
        __getattr__, __dir__, __all__ = lazy_names(globals())
"""

import ast
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

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
    """Return the error that names the extra; None if no extra has the module. user: what needs it, for the
    message.
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
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def lazy_names(held: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the package with the globals `held`. Raises
    ImportError without its source; a name whose library is not installed raises MissingExtraError when it is
    used.
    """
    package = held["__name__"]
    module_of = _names_for_type_checkers(held["__loader__"].get_source(package), package)

    def imported(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = module_of[name]
        own = module == package  # `from shop import prices as prices`: a module of the package itself
        try:
            value = (
                importlib.import_module(f"{package}.{name}")
                if own
                else getattr(importlib.import_module(module), name)
            )
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"{package}.{name}") or error from None
        held[name] = value
        return value

    def names() -> list[str]:
        return sorted({*held, *module_of})

    return imported, names, sorted(module_of)


def _names_for_type_checkers(source: str | None, package: str) -> dict[str, str]:
    if source is None:
        raise ImportError(
            f"package {package} is installed without its source, which lists its names", name=package
        )
    return {
        alias.name: str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
