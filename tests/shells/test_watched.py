"""Stores that watchers keep whole: runs of real shells, and the bugs that they must find."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dos_client.membership import filling
from dos_client.membership import watching as shell
from dos_protocol.store_record import StoreRecord
from tests.shells.watched import PartedCluster, WatchedCluster, run_watched, watched_seeds
from tests.sim.bugs.catalogue import Patch, patched

SEEDS = [2, 4]
"""More by hand: `python -m tests.shells.watched 100`."""
PARTED = [3, 8]


# EVIDENCE-OF: P-4, P-5, P-10
@pytest.mark.parametrize("seed", SEEDS)
def test_a_watched_store_loses_two_members_and_nothing_else(seed: int) -> None:
    result = run_watched(seed)
    assert not result.violation, f"seed {seed}: {result.violation}"
    assert result.history.sometimes["a lost member was replaced"]


# EVIDENCE-OF: P-4
@pytest.mark.parametrize("seed", PARTED)
def test_watchers_that_are_cut_off_from_different_members_do_not_both_act(seed: int) -> None:
    result = run_watched(seed, make=PartedCluster)
    assert not result.violation, f"seed {seed}: {result.violation}"


def a_spare_counts_before_it_is_filled() -> list[Patch]:
    async def run(self: filling.Filling) -> None:
        self._check()

    return [(filling.Filling, "run", run)]


def watchers_act_without_a_claim() -> list[Patch]:
    """A watcher sends the record that it wants, whatever another one has sent."""

    @asynccontextmanager
    async def no_log(store: Any, **_: Any) -> AsyncIterator[Any]:
        async def decide(record: StoreRecord) -> None:
            log.last = record

        async def write(*_: Any) -> None: ...

        claim = SimpleNamespace(epoch=0)
        log = SimpleNamespace(
            last=store.record, claim=claim, check=lambda: None, decide=decide, write=write, beat=lambda: None
        )
        yield log

    return [(shell, "open_record_log", no_log)]


BUGS: dict[str, tuple[Callable[[], list[Patch]], type[WatchedCluster], list[int]]] = {
    "a_spare_counts_before_it_is_filled": (a_spare_counts_before_it_is_filled, WatchedCluster, [2, 1, 3]),
    "watchers_act_without_a_claim": (watchers_act_without_a_claim, PartedCluster, watched_seeds(12)),
}
"""Bug -> the kind of run that shows it, and the seeds, one of which must find it."""


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    patches, make, seeds = BUGS[name]
    with patched(patches()):
        for seed in seeds:
            try:
                if run_watched(seed, make=make).violation:
                    return
            except Exception:
                return
    pytest.fail(f"not found in {len(seeds)} seeds")
