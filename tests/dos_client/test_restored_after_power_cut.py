"""A member loses its power, which nobody notices, and starts with an older copy of its disk.

A client still has a session with the previous start of the server. Over that session nothing can be proved.
"""

from copy import deepcopy
from typing import Never

import pytest
import trio
from trio.testing import MockClock

from dos_client import open_store
from dos_client.core.witnessing import ProveStamp, StoreStamp
from dos_protocol.errors import RolledBackError
from dos_protocol.store_record import NO_STAMP, DiskStamp
from dos_server.testing import memory_store
from tests.dos_client.support import new_writer


async def acknowledged_by_the_copy() -> tuple[bool, bool]:
    """Return whether an append is acknowledged, and whether the disk was found to have gone back."""
    async with memory_store(seed=1) as servers, open_store(servers.url) as store:
        first = servers[0]
        await first.stop()
        image = deepcopy(first.disk.root)
        await first.restart()
        async with await store.claim("d", 1, new_writer()) as claim:
            writer = claim.open_object("o")
            await writer.wait_synced(writer.append(b"acknowledged"))
            member = next(one.server_id for one in store.record.members if one.address == first.address)
            assert await claim.wait_all(60.0)
            while not store.is_connected(member):
                await store.wait_moved(1.0)
            first.power_cut()  # an idle session does not notice
            first.disk.root = image
            await first.restart()
            servers[2].crash()
            with trio.move_on_after(60):
                await writer.wait_synced(writer.append(b", and more"))
            return writer.synced == writer.size, member in store.witnesses.rolled_back


# EVIDENCE-OF: P-5
def test_a_session_with_the_previous_start_proves_nothing() -> None:
    acknowledged, detected = trio.run(acknowledged_by_the_copy, clock=MockClock(autojump_threshold=0))
    assert detected
    assert not acknowledged


@pytest.mark.trio
async def test_a_server_that_went_back_accuses_itself_and_not_the_member_it_was_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refuses every request then, also one to store the stamp of another member, which is sound."""
    sound, old = b"s" * 16, b"o" * 16

    async def refused(*given: object) -> Never:
        raise RolledBackError("it lacks stamp 2")

    async with memory_store() as servers, open_store(servers.url) as store:
        monkeypatch.setattr(store.witnesses, "_request", refused)
        await store.witnesses._run_step(StoreStamp(old, sound, DiskStamp(1, b"1" * 16), NO_STAMP))
        assert store.witnesses.rolled_back == {old}
        await store.witnesses._run_step(ProveStamp(sound, DiskStamp(1, b"1" * 16)))
        assert store.witnesses.rolled_back == {old, sound}
