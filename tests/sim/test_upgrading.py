"""Graphs that change between two starts: no history breaks a promise, and each rule that is left out is
found.

The seeds of `FOUND` come from `python -m tests.sim.upgrading`, which hunts again after a change of the model.
"""

from collections import Counter
from typing import Final

import pytest

from tests.sim.history import ViolationError
from tests.sim.upgrading.histories import FOCUSES, run_history
from tests.sim.upgrading.rules import OMISSIONS
from tests.support.parts import with_long

FOUND: Final = {
    "replay-old-steps": ("sources", 3),
    "no-quiet-check": ("all", 27),
    "stop-does-not-pause": ("all", 0),
    "take-back-without-line": ("outside", 0),
    "uid-reused": ("all", 3),
    "rename-without-positions": ("outside", 3),
    "rename-without-watermarks": ("races", 13),
    "rename-moves-log": ("outside", 2),
    "removed-sink-not-completed": ("outside", 1103),
    "steps-before-commit": ("all", 0),
    "old-program-accepted": ("all", 0),
    "options-applied-again": ("forks", 1),
    "no-state-schema": ("outside", 6),
    "key-not-compared": ("all", 1),
    "kind-not-compared": ("all", 1),
    "unnamed-state-dropped": ("all", 24),
    "register-late": ("sources", 4),
    "deregister-early": ("all", 60),
    "map-of-present-graph": ("outside", 3),
    "drop-deletes-now": ("outside", 0),
    "check-after-claim": ("all", 0),
    "bootstrap-twice": ("rows", 1),
    "bootstrap-after-commit": ("rows", 0),
    "begins-again": ("sources", 0),
    "begins-ignored": ("sources", 0),
    "void-after-commit": ("sources", 12),
    "ports-not-compared": ("all", 1),
    "lineage-not-compared": ("forks", 29),
    "consumer-never-removed": ("outside", 24),
    "removed-sink-leaves-transactions": ("outside", 122),
    "removed-sink-of-staying-workers": ("outside", 3455),
    "removed-place-not-compared": ("outside", 2),
    "unnamed-sink-removed": ("outside", 7),
    "completes-unfenced": ("outside", 937),
    "removed-log-has-no-end": ("all", 3),
    "ends-of-staying-workers": ("outside", 2),
    "restore-keeps-ended-logs": ("all", 3),
    "quiet-asks-new-workers": ("forks", 57),
    "uid-without-region": ("forks", 81),
    "irrevocable-of-present-sinks": ("races", 420),
    "take-back-shows-again": ("all", 21),
    "not-decided-under-the-claim": ("races", 71),
    "decided-after-the-segment": ("races", 71),
    "superseded-driver-ends": ("all", 12),
    "claims-without-lease": ("sources", 28),
    "rewind-forgets-new-logs": ("all", 3),
    "backup-without-ended-logs": ("outside", 0),
    "one-upgrade-savepoint": ("all", 0),
    "bootstrap-of-another-checkpoint": ("rows", 29),
    "falls-back-below-changes": ("forks", 21),
    "published-by-number": ("races", 38),
    "quiet-is-not-renewed": ("sources", 106),
    "quiet-without-pause": ("all", 0),
}
"""Omission -> the kind of history and the seed that find it."""

SEEN: Final = (
    "graph",
    "back",
    "fork",
    "killed",
    "fell back",
    "handed over",
    "not handed over",
    "raced",
    "woken",
)


def test_every_omission_has_a_history_that_finds_it() -> None:
    assert list(FOUND) == list(OMISSIONS)


@pytest.mark.parametrize("omission", FOUND)
def test_a_rule_that_is_left_out_is_found(omission: str) -> None:
    focus, seed = FOUND[omission]
    run_history(seed, focus)
    with pytest.raises(ViolationError):
        run_history(seed, focus, without=omission)


SHORT, LONG = 50, 1_000


@pytest.mark.parametrize("seeds", with_long([range(SHORT)], [range(SHORT, LONG)]), ids=str)
@pytest.mark.parametrize("focus", FOCUSES)
def test_no_history_of_changing_graphs_breaks_a_promise(focus: str, seeds: range) -> None:
    seen = Counter[str]()
    for seed in seeds:
        try:
            seen += run_history(seed, focus)
        except ViolationError as found:
            found.add_note(f"run_history({seed}, {focus!r})")
            raise
    if focus == "all":
        assert not [event for event in SEEN if not seen[event]], seen
