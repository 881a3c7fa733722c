"""Members that move to other addresses, and copies of their disks: runs of real shells, and the bugs that
they must find."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dos_client import store as store_module
from dos_client.core.membership import ServerAnswer
from dos_client.core.watching import MemberSight
from dos_client.live_store import Store
from dos_client.membership import replacing, watching
from dos_client.sessions.discovery import find_membership
from dos_server.core.requests.stamps import History
from tests.shells.moved import MovedCluster
from tests.shells.watched import run_watched
from tests.sim.bugs.catalogue import Patch, patched

SEEDS = [3]
"""More by hand: `python -m tests.shells.moved 100`."""


# EVIDENCE-OF: P-4, P-5, P-10
@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_is_followed_and_no_copy_of_it_counts(seed: int) -> None:
    result = run_watched(seed, make=MovedCluster)
    assert not result.violation, f"seed {seed}: {result.violation}"


def the_identity_at_a_new_address_is_not_compared() -> list[Patch]:
    """Any server that answers at another address than the members' is taken for the member that is lost."""
    original = watching.StoreObserver._sight_of

    def sight_of(self: Any, member: Any, ours: Any, seen: Any, present: bool) -> MemberSight:
        sight = original(self, member, ours, seen, present)
        assert self._record is not None
        known = {one.address for one in (*self._record.members, *self._record.spares)}
        others = tuple(one.address for one in seen.answers if one.address not in known)
        return replace(sight, elsewhere=others if not present else sight.elsewhere)

    async def is_that_member(store: Any, server_id: bytes, address: str) -> None:
        del store, server_id, address

    return [(watching.StoreObserver, "_sight_of", sight_of), (replacing, "_is_that_member", is_that_member)]


def clients_stay_at_the_old_address() -> list[Patch]:
    """A client uses the address that it knew for a member before the record of the move."""
    original = Store._adopt

    def adopt(self: Any, membership: Any) -> None:
        self.located = {**{one.server_id: one.address for one in self.record.members}, **self.located}
        original(self, membership)

    return [(Store, "_adopt", adopt)]


def a_moved_member_counts_before_the_record_has_its_address() -> list[Patch]:
    """A client uses a member wherever its identity answers."""
    original = store_module._run_store

    @asynccontextmanager
    async def run_store(url: Any, record: Any, access: Any, located: Any) -> AsyncIterator[Store]:
        _, seen = await find_membership(url.servers, hurry=True)
        known = {one.server_id: one.address for one in record.members}
        elsewhere = {
            one.server_id: one.address
            for one in seen.answers
            if known.get(one.server_id, one.address) != one.address
        }
        async with original(url, record, access, {**elsewhere, **located}) as store:
            yield store

    return [(store_module, "_run_store", run_store)]


def an_older_copy_counts() -> list[Patch]:
    return [(History, "lacks", lambda self, stamp: False)]


def an_older_copy_at_the_old_address_stops_the_move() -> list[Patch]:
    """A disk that went back is taken for the member, so that it answers at two addresses."""
    original = replacing.probe

    async def probe(address: str, *options: Any) -> ServerAnswer:
        return replace(await original(address, *options), rolled_back=False)

    return [(replacing, "probe", probe)]


BUGS: dict[str, tuple[Callable[[], list[Patch]], str, int]] = {
    one.__name__: (one, oracle, seed)
    for one, oracle, seed in (
        (the_identity_at_a_new_address_is_not_compared, "O15", 9),
        (clients_stay_at_the_old_address, "O11", 9),
        (a_moved_member_counts_before_the_record_has_its_address, "O3", 2),
        (an_older_copy_counts, "O1", 3),
        (an_older_copy_at_the_old_address_stops_the_move, "O11", 3),
    )
}
"""Bug -> its patches, the oracle that finds it, and the seed."""


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.shells.run.LIVENESS_S", 8.0)
    patches, oracle, seed = BUGS[name]
    with patched(patches()):
        assert run_watched(seed, make=MovedCluster).oracle == oracle
