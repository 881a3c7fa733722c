"""The description of a planted bug, and the table of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

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


BUGS: Final[dict[str, Bug]] = {}


def bug(
    breaks: str, where: Callable[[RandomStreams], bool] | None = None
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        BUGS[name] = Bug(name, breaks, patches, where)
        return patches

    return register
