"""The public names of a package, imported on first use (PEP 562).

Spark starts several Python processes for each query; each pays only for the imports it uses
(docs/decisions/0170). A package lists its names once, as imports for type checkers:

    if TYPE_CHECKING:
        from shop.orders import Order as Order
    else:
        __getattr__, __dir__, __all__ = lazy_names(globals())

At run time `lazy_names` reads that block from the package's own source.
"""

import ast
import importlib
from collections.abc import Callable
from typing import Any

from dos_protocol.extras import missing_extra


def lazy_names(held: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for the package with the globals `held`.

    Raises ImportError if the source of the package is not available. A name whose module needs a library of
    an extra that is not installed raises MissingExtraError when it is used.
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
    """Return name -> module of the imports in the block `if TYPE_CHECKING:`."""
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
