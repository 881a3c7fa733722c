"""Planted bugs: each breaks one rule in the real code for the duration of a run.

They must be found: a simulator that finds none of them would find nothing. A bug replaces functions while the
context `planted` is entered. Only tests import this module.

A bug is a few lines and names the row of the bug classes, or the rule of take-over, that it breaks.
"""

from tests.sim.bugs import claims, disk, group_log, journal, membership, regions, troubles, visitors
from tests.sim.bugs.catalogue import BUGS, Bug, planted

__all__ = ["BUGS", "Bug", "planted"]

MODULES = (disk, group_log, troubles, claims, journal, membership, regions, visitors)
