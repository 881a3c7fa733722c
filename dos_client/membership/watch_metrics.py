"""The Prometheus metrics of `dos store watch`, in the registry of `dos_client.metrics`.

A process has them after this module is imported, and runs one watcher. Documentation: docs/metrics.md.
"""

from collections import Counter as Counts
from typing import Final

from prometheus_client import Counter, Enum, Gauge

from dos_client.core import watching as core
from dos_client.core.watching import Action, MemberSight, Problem, StoreSight
from dos_client.metrics import registry

_NONE: Final = "none"

looks: Final = Counter("dos_watch_looks", "Looks at the store", registry=registry)
last_look: Final = Gauge(
    "dos_watch_last_look_timestamp_seconds", "When the last look ended, in Unix time", registry=registry
)
generation: Final = Gauge("dos_watch_generation", "Generation of the store record", registry=registry)
members: Final = Gauge("dos_watch_members", "Members of the store by state", ["state"], registry=registry)
silent_seconds: Final = Gauge(
    "dos_watch_member_silent_seconds",
    "How long a member has been unavailable; 0 if it is present",
    ["member"],
    registry=registry,
)
spares: Final = Gauge(
    "dos_watch_spares", "Spares of the store by state: usable or unusable", ["state"], registry=registry
)
actions: Final = Counter(
    "dos_watch_actions",
    "Actions: replace, complete, follow, repair; begun, done or failed",
    ["action", "outcome"],
    registry=registry,
)
failures: Final = Counter(
    "dos_watch_failures", "Failed actions by the class of the error", ["action", "error"], registry=registry
)
problem: Final = Enum(
    "dos_watch_problem",
    "Why a person has to act",
    states=[_NONE, *(one.value for one in Problem)],
    registry=registry,
)
holds_claim: Final = Gauge(
    "dos_watch_holds_claim", "Whether this watcher holds the claim of the record log", registry=registry
)

_STATES: Final = ("present", "filling", "moved", "unavailable")
_shown: Final[set[str]] = set()
"""The members with a value of `silent_seconds`."""


def saw(sight: StoreSight, action: Action, now_s: float) -> None:
    """Publish the result of a look that ended at `now_s`, in Unix time."""
    looks.inc()
    last_look.set(now_s)
    report = core.report_of(sight, action)
    problem.state(_NONE if report is None else report.problem.value)
    if sight.record is None:
        return
    generation.set(sight.record.generation)
    states = Counts(_state(one) for one in sight.members)
    for state in _STATES:
        members.labels(state).set(states[state])
    silent_s = {one.member.address: one.silent_s for one in sight.members}
    for address in _shown - silent_s.keys():
        silent_seconds.remove(address)
    for address, seconds in silent_s.items():
        silent_seconds.labels(address).set(seconds)
    _shown.clear()
    _shown.update(silent_s)
    unusable = sum(bool(one.problem) for one in sight.spares)
    spares.labels("usable").set(len(sight.spares) - unusable)
    spares.labels("unusable").set(unusable)


def begins(action: Action) -> None:
    """Count an action that begins."""
    actions.labels(core.name_of(action), "begun").inc()


def ended(action: Action, error: Exception | None) -> None:
    """Count an action that ended, by an error or without one."""
    actions.labels(core.name_of(action), "done" if error is None else "failed").inc()
    if error is not None:
        failures.labels(core.name_of(action), type(error).__name__).inc()


def _state(one: MemberSight) -> str:
    if one.present:
        return "present" if one.member.state == "in" else "filling"
    return "moved" if one.elsewhere else "unavailable"
