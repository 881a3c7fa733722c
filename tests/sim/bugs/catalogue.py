"""What a planted bug is, and where they are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One planted bug. `breaks`: the row or rule; `patches`: what is put in whose place."""

    name: str
    breaks: str
    patches: Callable[[], list[Patch]]


BUGS: Final[dict[str, Bug]] = {}


def bug(breaks: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def keep(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        BUGS[name] = Bug(name, breaks, patches)
        return patches

    return keep
