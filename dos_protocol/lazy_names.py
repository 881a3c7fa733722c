"""Names of a package that are imported on first use (PEP 562).

Spark starts several Python processes for each query; each pays only for the imports it uses
(docs/decisions/0170).

    if TYPE_CHECKING:
        from shop.orders import Order
    else:
        __getattr__, __dir__ = lazy_names(globals(), {"shop.orders": ("Order",)})

This module imports no other module of the project.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    held: dict[str, Any], modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `held`: the package's globals. `modules`: for each module, its names that the package exports.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def imported(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {held['__name__']!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        held[name] = value
        return value

    def names() -> list[str]:
        return sorted({*held, *module_of})

    return imported, names
