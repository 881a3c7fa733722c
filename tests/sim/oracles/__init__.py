"""The oracles: what must be true. Cheap ones check at every step, the others at the end.

    O1   nothing lost    every take-over finds what was acknowledged, and it is on the platters
    O2   order           records are in the order of epochs and numbers; copies are prefixes
    O3   reads stay      what a reader received stays
    O4   one writer      an object has one writer, and no fenced one receives an acknowledgement
    O5   listed          LIST and STAT return what was acknowledged, and no more than is durable
    O6   refused         no take-over is refused while no more is damaged than the promise allows
    O9   no effect       a refused append stores no byte
    O10  caps            sessions, requests, files and memory are under their limits
    O11  progress        after the heal, work continues
    O12  damage          damage is reported, and nothing else is reported as damage
    O14  causes          reports about disks are true, and transient causes have no lasting effect

These are in `store`. O7 and O8 check regions (docs/simulation.md names their files). O13 is
`tests.sim.sometimes`.

An oracle keeps the state that it needs. It reads the history and the platters, never the opinion of the code
that it checks, and changes nothing.
"""

from typing import Final

from tests.sim.oracles.store import (
    Bench,
    Caps,
    Causes,
    Damage,
    Listed,
    NoEffect,
    NothingLost,
    OneWriter,
    Oracle,
    Order,
    Progress,
    ReadsStay,
    Refused,
    ViolationError,
    without,
)

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
    """Return the oracles of one run."""
    return Bench(ORACLES)
