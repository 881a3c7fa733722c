"""A module with a bug in its source, for tests that play many histories with and without it.

Bugs that one near test finds are in `tests/mutation/planted.toml`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tests.mutation.mutants import codes_in


def planted(module: ModuleType, before: str, after: str) -> dict[str, Any]:
    """Return the names of the module as its source would define them with `before`, found once, replaced."""
    source = inspect.getsource(module)
    assert source.count(before) == 1, before
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(before, after), "planted", "exec"), names)
    return names


def is_found(tries: Iterable[Callable[[], object]], *errors: type[Exception]) -> bool:
    """Return whether one of these runs, of a program with a planted bug, ends with such an error."""
    for run in tries:
        try:
            run()
        except errors:
            return True
    return False


@contextmanager
def edited(function: FunctionType, before: str, after: str) -> Iterator[None]:
    """Replace `before`, found once in the source of a function, while the context is entered. All that
    hold the function call the edited one.
    """
    code, own = function.__code__, inspect.getsource(function)
    assert own.count(before) == 1, before
    source = Path(code.co_filename).read_text().replace(own, own.replace(before, after))
    (function.__code__,) = (
        one
        for one in codes_in(compile(source, code.co_filename, "exec"))
        if one.co_qualname == code.co_qualname
    )
    try:
        yield
    finally:
        function.__code__ = code
