"""A module with a bug in its source, for tests that play many histories with and without it.

Bugs that one near test finds are in `tests/mutation/planted.toml`.
"""

import inspect
from types import ModuleType
from typing import Any


def planted(module: ModuleType, before: str, after: str) -> dict[str, Any]:
    """Return the names of the module as its source would define them with `before`, found once, replaced."""
    source = inspect.getsource(module)
    assert source.count(before) == 1, before
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(before, after), "planted", "exec"), names)
    return names
