"""The events that must happen at least once in many runs. Their names come from the project's own tables.

A branch that no run reaches is not tested, however many runs there are. So every kind of fault, every answer,
every row of the table of recovery, every step of a take-over and every end of a session is counted where it
happens, by a name of the form "GROUP: NAME" in `Environment.sometimes`. This file lists which names must be
counted after `ENOUGH_RUNS`, and which need not be, with the reason.

To watch something new: count it where it happens (`process.env.sometimes["group: NAME"] += 1`), and add an
`EventGroup` to `EVENT_GROUPS`, with names from the enum or the table that the code itself uses. Effects that
a method of the product returns are counted around that method: `_COUNTED`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, get_args
from unittest import mock

from checkpoint.core.coordination.run import PHASES
from checkpoint.core.links.participation import PARTICIPANT
from checkpoint.core.region import RegionState
from dos_client.core.claim import ClaimState
from dos_client.core.replica import ReplicaEffect
from dos_protocol.errors import ErrorCode
from dos_server.core.files.recovery import CASES, NO_SPACE_LETTER
from journal.core.read_walk import ReadWalk
from journal.core.walk import Effect as WalkEffect
from journal.core.walk import TakeOver
from tests.sim.nemesis import ALL_KINDS, OF_LOGS
from tests.sim.nemesis.troubles import OPENING
from tests.sim.store.session import Ending

ENOUGH_RUNS: Final = 10_000
"""From this number of runs on, an event that was never seen is an error."""


@dataclass(frozen=True)
class EventGroup:
    """Names of events of one kind. `exempt`: those that need not be seen, each with the reason."""

    title: str
    names: tuple[str, ...]
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        strangers = self.exempt.keys() - set(self.names)
        if strangers:
            raise ValueError(f"{self.title}: nothing is called {sorted(strangers)}, so it cannot be exempt")

    def missing(self, seen: Counter[str]) -> list[str]:
        """Return the names that should have been seen and were not."""
        names = (f"{self.title}: {name}" for name in self.names if name not in self.exempt)
        return [name for name in names if not seen[name]]


_KEEPS_THE_PROTOCOL: Final = "a simulated client keeps the protocol; tests/dos_server/test_every_error.py"
_ONLY_WITH_LOGS: Final = "a half of the runs with a group log have it; a range of other seeds has none"


def _steps(table: Mapping[Any, Mapping[Any, Any]]) -> tuple[str, ...]:
    """Return the transitions of a state table, each once, as "FROM to TO"."""
    moves = [(state, to) for state, row in table.items() for to in row.values() if to is not state]
    return tuple(dict.fromkeys(f"{state.name} to {to.name}" for state, to in moves))


_RARE: Final = "a moment of some milliseconds; tests/checkpoint/test_region_interleavings.py"

EVENT_GROUPS: Final = (
    EventGroup("fault", tuple(ALL_KINDS), exempt=dict.fromkeys(OF_LOGS, _ONLY_WITH_LOGS)),
    EventGroup(
        "disk",
        (
            "short write",
            "folder removed at work",
            "folder removed before a start",
            "ENOSPC from write",
            *(f"EMFILE from {method}" for method in sorted(OPENING | {"read"})),
            *(f"EACCES from {method}" for method in sorted(OPENING | {"read"})),
            *(f"EIO from {method}" for method in ("open", "read", "sync", "sync_folder", "write")),
        ),
    ),
    EventGroup(
        "answer",
        tuple(code.name for code in ErrorCode),
        {
            **dict.fromkeys(
                ("BAD_FRAME", "BAD_DIGEST", "TOO_LARGE", "UNKNOWN_OPCODE", "UNSUPPORTED", "BAD_VERSION"),
                _KEEPS_THE_PROTOCOL,
            ),
            **dict.fromkeys(("NOT_READY", "BAD_NAME", "NOT_CLAIMED"), _KEEPS_THE_PROTOCOL),
            **dict.fromkeys(("UNAUTHORISED", "FORBIDDEN"), "the servers have no token"),
            "QUOTA_EXCEEDED": "the servers have no quotas; tests/dos_server/test_quotas.py",
            "TLS_REQUIRED": "its network has no TLS; tests/dos_tls/test_connections.py",
            "INTERNAL": "a server that answers it has a bug of its own",
        },
    ),
    EventGroup(
        "start",
        (*sorted({f"case {row.letter}" for row in CASES} | {"case R", f"case {NO_SPACE_LETTER}"}), "refused"),
        {
            "case E": "sectors that are swapped are no whole extents; tests/dos_server/test_recovery.py",
            "case F": "there is no newer version; tests/dos_server/test_recovery.py",
        },
    ),
    EventGroup("take-over", tuple(effect.__name__ for effect in get_args(WalkEffect))),
    EventGroup(
        "read walk",
        tuple(effect.__name__ for effect in get_args(WalkEffect)),
        {"Settle": "a reader settles nothing"},
    ),
    EventGroup("claim", tuple(state.name for state in ClaimState), {"CLAIMING": "every claim begins so"}),
    EventGroup("copy", tuple(effect.name for effect in ReplicaEffect)),
    EventGroup("session", tuple(ending.name for ending in Ending)),
    EventGroup(
        "version 0", ("u", "u refused", "a", "a refused", "l", "g", "s", "s refused", "d", "d refused")
    ),
    EventGroup("visitor", ("appended by version 1",)),
    EventGroup("writer", ("fenced before start", "fenced after start", "rolled", "NotEnoughAnswersError")),
    EventGroup("reader", ("read",)),
    EventGroup("operator is done", ("replace", "add", "repair", "recover")),
    EventGroup("operator", ("refused without --accept-loss",)),
    EventGroup("loss", ("acknowledged records are gone", "nothing is gone")),
    EventGroup(
        "coordinator",
        _steps(PHASES),
        {"NEW to ENDING": "no run stops it so early; tests/checkpoint/test_coordinator.py"},
    ),
    EventGroup(
        "participant",
        _steps(PARTICIPANT),
        {
            "CONNECTED to ENDED": _RARE,
            "JOINED to FAILED": "without an order nothing of a worker fails here",
            "FINISHED to FAILED": _RARE,
            "FINISHED to RESTORING": _RARE,
        },
    ),
    EventGroup("worker failed", ("peer", "fenced", "store")),
    EventGroup("end", tuple(state.name for state in RegionState if state.is_end)),
)


def missing(seen: Counter[str]) -> list[str]:
    """Return all names that should have been seen and were not."""
    return [name for group in EVENT_GROUPS for name in group.missing(seen)]


_COUNTED: Final[tuple[tuple[Any, str, str], ...]] = tuple(
    (walk, method, title)
    for walk, title in ((TakeOver, "take-over"), (ReadWalk, "read walk"))
    for method in ("begin", "handle")
)
"""Methods that return effects, and the group in which the effects are counted by their class."""


def _counting(method: Callable[..., list[Any]], title: str, seen: Counter[str]) -> Callable[..., list[Any]]:
    def counted(*args: Any) -> list[Any]:
        effects = method(*args)
        for effect in effects:
            seen[f"{title}: {type(effect).__name__}"] += 1
        return effects

    return counted


@contextmanager
def watching(seen: Counter[str]) -> Iterator[None]:
    """Count the effects of `_COUNTED` in `seen` while the context is entered."""
    with ExitStack() as stack:
        for owner, name, title in _COUNTED:
            counted = _counting(getattr(owner, name), title, seen)
            stack.enter_context(mock.patch.object(owner, name, counted))
        yield
