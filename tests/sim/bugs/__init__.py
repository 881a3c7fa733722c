"""Planted bugs: each breaks one rule in the real code for the duration of a run.

They are here to be found: a simulator that finds none of them would find nothing. The switch is this
module, which only tests import: a bug is a replacement of functions, put in place by `planted` and taken
away after.

A bug is a few lines and names the row of the bug classes, or the rule of take-over, that it breaks.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from tests.sim.bugs import claims, disk, journal, membership, regions, troubles, visitors
from tests.sim.bugs.catalogue import BUGS, Bug

__all__ = ["BUGS", "ROOMS", "Bug", "planted"]

MODULES = (disk, troubles, claims, journal, membership, regions, visitors)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The bug of that name is there inside; None: none is."""
    with ExitStack() as stack:
        for target, attribute, replacement in BUGS[name].patches() if name is not None else ():
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
