"""The description of a planted bug, and the table of all of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    tier: str = "cores"
    """The simulator that finds it (`tests.sim.tiers`)."""


BUGS: Final[dict[str, Bug]] = {}


def bug(
    breaks: str,
    where: Callable[[RandomStreams], bool] | None = None,
    *,
    first: int = 0,
    tier: str = "cores",
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        assert name not in BUGS, name
        BUGS[name] = Bug(name, breaks, patches, where, first, tier)
        return patches

    return register


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Apply patches while the context is entered."""
    with ExitStack() as stack:
        for target, attribute, replacement in patches:
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


def planted(name: str | None) -> AbstractContextManager[None]:
    """Plant the bug of that name while the context is entered; None: no bug."""
    return patched(() if name is None else BUGS[name].patches())
