"""What must be true, one module each. Cheap ones judge at every step, the others at the end of a run.

    O1   nothing lost    what was acknowledged is found by every take-over, and is on the platters
    O2   order           records are in the order of epochs and numbers; copies are prefixes
    O3   shown           what a reader was shown stays
    O4   one writer      an object has one, and no fenced one receives an acknowledgement
    O5   listed          LIST and STAT show what was acknowledged, and no more than is durable
    O6   refused         no take-over is refused while no more is damaged than may be
    O9   no effect       a refused append leaves no byte
    O10  caps            sessions, requests, files and memory under their limits
    O11  progress        after the heal, work goes on
    O12  damage          what was damaged is reported, and nothing else is
    O14  causes          what is said of a disk is true, and causes that pass leave nothing behind

O7 and O8 are about regions (docs/simulation.md says where they are), O13 counts what happened sometimes.

Rules of this room: an oracle remembers what it needs, asks the history and the platters, and never the code
that is judged whether it was right. It changes nothing.
"""

from typing import Final

from tests.sim.oracles.o1_nothing_lost import NothingLost
from tests.sim.oracles.o2_order import Order
from tests.sim.oracles.o3_reads import ReadsStay
from tests.sim.oracles.o4_one_writer import OneWriter
from tests.sim.oracles.o5_listed import Listed
from tests.sim.oracles.o6_refused import Refused
from tests.sim.oracles.o9_no_effect import NoEffect
from tests.sim.oracles.o10_caps import Caps
from tests.sim.oracles.o11_progress import Progress
from tests.sim.oracles.o12_damage import Damage
from tests.sim.oracles.o14_causes import Causes
from tests.sim.oracles.oracle import Bench, Oracle, ViolationError, without

__all__ = ["ORACLES", "Bench", "Oracle", "ViolationError", "bench", "without"]

ORACLES: Final[tuple[type[Oracle], ...]] = (
    NothingLost,
    Order,
    ReadsStay,
    OneWriter,
    Listed,
    Refused,
    NoEffect,
    Caps,
    Progress,
    Damage,
    Causes,
)


def bench() -> Bench:
    """The oracles for one run."""
    return Bench(ORACLES)
