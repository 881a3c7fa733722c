"""What a planted bug is, and where they are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.sim.engine.random_streams import RandomStreams

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One planted bug. `breaks`: the row or rule; `patches`: what is put in whose place."""

    name: str
    breaks: str
    patches: Callable[[], list[Patch]]
    where: Callable[[RandomStreams], bool] | None = None
    """The seeds that may show it, when only some can."""


BUGS: Final[dict[str, Bug]] = {}


def bug(
    breaks: str, where: Callable[[RandomStreams], bool] | None = None
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def keep(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        BUGS[name] = Bug(name, breaks, patches, where)
        return patches

    return keep
