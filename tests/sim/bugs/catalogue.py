"""The description of a planted bug, and the table of all of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from tests.sim.engine.random_streams import RandomStreams

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One planted bug. `breaks`: the row or rule; `patches`: (object, attribute, replacement)."""

    name: str
    breaks: str
    patches: Callable[[], list[Patch]]
    where: Callable[[RandomStreams], bool] | None = None
    """Whether a seed can show it; None: all seeds can."""
    first: int = 0
    """Added to the first seed of a hunt."""


BUGS: Final[dict[str, Bug]] = {}


def bug(
    breaks: str, where: Callable[[RandomStreams], bool] | None = None, *, first: int = 0
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        BUGS[name] = Bug(name, breaks, patches, where, first)
        return patches

    return register


@contextmanager
def planted_from(bugs: Mapping[str, Bug], name: str | None) -> Iterator[None]:
    """Plant the bug of that name while the context is entered; None: no bug."""
    with ExitStack() as stack:
        for target, attribute, replacement in bugs[name].patches() if name is not None else ():
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
