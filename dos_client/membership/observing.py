"""Observe a store: which members and spares answer, where, for how long not, and whether another run works.

`core.watching` decides what follows from it.
"""

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Final

import trio

from dos_client.core import watching as core
from dos_client.core.membership import ROLLED_BACK, ServerAnswer
from dos_client.core.quorum import filled_member
from dos_client.core.record_log import DIRECTORY
from dos_client.core.watching import MemberSight, Silences, SpareSight, StoreSight
from dos_client.limits import looks_per_damage, watch_compare_s
from dos_client.live_store import Store
from dos_client.membership.checking import require_empty
from dos_client.repair.verifying import verify_store
from dos_client.sessions.connection import open_connection
from dos_client.sessions.discovery import ServerSurvey, find_membership
from dos_client.store import open_store
from dos_client.urls import DosUrl
from dos_protocol.errors import DosError
from dos_protocol.store_record import DiskStamp, Member, StoreRecord, decode_witnessed

log: Final = logging.getLogger("dos.client")


class StoreObserver:
    """Looks at one store again and again. It remembers for how long members are silent.

    `own_epoch`: the epoch of the record log that the owner of this observer holds or held, so that its own
    work is not taken for the work of another run. `seen_epoch`: the epoch at the last look that decided
    anything.
    """

    def __init__(self, servers: Sequence[str], *, step_max_s: float, token: bytes, client: str) -> None:
        self.own_epoch = self.seen_epoch = 0
        self._servers, self._token, self._client = list(servers), token, client
        self._silences = Silences(step_max_s)
        self._store_id: bytes | None = None
        self._record: StoreRecord | None = None
        self._activity: tuple[int, int, int] | None = None
        self._active_at = -inf
        self._returned: dict[bytes, str] = {}
        self._absent: set[bytes] = set()
        self._looks = 0
        self._compare_at = -inf

    def other_run_works(self) -> None:
        """Note that another run changes the store: it has taken the record log over."""
        self._active_at = trio.current_time()

    def copies_compared(self) -> None:
        """Note that the copies of members that were away have been compared and repaired."""
        self._returned.clear()

    @asynccontextmanager
    async def open(self, located: Mapping[bytes, str]) -> AsyncIterator[Store]:
        url = DosUrl(tuple(self._addresses()))
        async with open_store(url, token=self._token, client=self._client, located=located) as store:
            yield store

    async def look(self) -> StoreSight:
        membership, seen = await find_membership(
            self._addresses(),
            token=self._token,
            client=self._client,
            store_id=self._store_id,
        )
        record = membership.record
        if record is None:
            return StoreSight(None, problems=tuple(seen.problems(membership)))
        self._store_id, self._record = record.store_id, record
        ours = [
            one
            for one in seen.answers
            if one.record is not None and one.record.store_id == record.store_id and not one.rolled_back
        ]
        present = {one.server_id for one in ours if _is_at(record, one)}
        absent = {one.server_id for one in record.members} - present
        stamps = await self._stamps_of(record, absent, present) if absent else {}
        self._silences.look(trio.current_time(), absent, stamps)
        for member in record.members:
            if member.server_id in self._absent and member.server_id in present:
                self._returned[member.server_id] = member.address
        self._returned = {
            one: address for one, address in self._returned.items() if record.member(one) is not None
        }
        self._absent = absent
        sight = StoreSight(
            record,
            tuple(self._sight_of(one, ours, seen, one.server_id in present) for one in record.members),
            await self._sights_of_spares(record, seen, needed=bool(absent)),
            inf,
            returned=tuple(self._returned.values()),
        )
        self._looks += 1
        due = bool(absent or self._returned or filled_member(record)) or self._looks % looks_per_damage == 1
        if not due or not core.sees_quorum(sight):
            return sight
        damaged, behind = await self._look_inside(
            record, _located(record, ours, present), compare=not absent and filled_member(record) is None
        )
        return replace(sight, still_s=trio.current_time() - self._active_at, damaged=damaged, behind=behind)

    async def _sights_of_spares(
        self, record: StoreRecord, seen: ServerSurvey, *, needed: bool
    ) -> tuple[SpareSight, ...]:
        """Return what is seen of the spares. Whether they are empty is only read if one is `needed`."""
        sights: dict[bytes, SpareSight] = {}

        async def look_at(spare: Member) -> None:
            problem = _why_no_spare(spare, seen)
            if not problem and needed:
                problem = await self._why_not_empty(record, spare)
            sights[spare.server_id] = SpareSight(spare, problem)

        async with trio.open_nursery() as nursery:
            for spare in record.spares:
                nursery.start_soon(look_at, spare)
        return tuple(sights[one.server_id] for one in record.spares)

    def _addresses(self) -> list[str]:
        """Return where to look: the servers that were named may all have been replaced since."""
        record = self._record
        known = [] if record is None else [one.address for one in (*record.members, *record.spares)]
        return list(dict.fromkeys([*self._servers, *known]))

    def _sight_of(
        self, member: Member, ours: Sequence[ServerAnswer], seen: ServerSurvey, present: bool
    ) -> MemberSight:
        elsewhere = tuple(
            one.address for one in ours if one.server_id == member.server_id and one.address != member.address
        )
        why = "" if present else _why_absent(member, seen)
        return MemberSight(
            member,
            present,
            self._silences.silent_s(member.server_id),
            elsewhere,
            why,
            self._silences.reached_by_others(member.server_id),
            any(one.refuses_appends and one.server_id == member.server_id for one in ours),
        )

    async def _why_not_empty(self, record: StoreRecord, spare: Member) -> str:
        try:
            await require_empty(spare.address, self._token, self._client, record)
        except DosError as error:
            return str(error.args[0])
        return ""

    async def _stamps_of(
        self, record: StoreRecord, absent: set[bytes], present: set[bytes]
    ) -> dict[bytes, DiskStamp]:
        """Return the newest stamps of absent members that present members know."""
        newest: dict[bytes, DiskStamp] = {}
        for member in record.members:
            if member.server_id not in present:
                continue
            try:
                async with open_connection(
                    member.address,
                    token=self._token,
                    store_id=record.store_id,
                    generation=record.generation,
                    client=self._client,
                ) as connection:
                    witnessed = decode_witnessed(connection.welcome.witnessed)
            except (DosError, ValueError) as error:
                log.info("%s does not tell what it knows of others: %s", member.address, error)
                continue
            for one, stamp in witnessed.items():
                if one in absent and stamp.number >= newest.get(one, stamp).number:
                    newest[one] = stamp
        return newest

    async def _look_inside(
        self, record: StoreRecord, located: Mapping[bytes, str], *, compare: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Note whether another run changes the store. Return the directories with damaged copies, and those
        with copies that are behind a writer that is gone. To `compare` all copies takes long in a large
        store, so they are compared every `watch_compare_s`.
        """
        async with self.open(located) as store:
            view = await store.inspect(DIRECTORY)
            sizes = [info.synced for objects in view.answers.values() for info in objects.values()]
            activity = view.epoch_seen, sum(sizes), record.generation
            if self._activity is None:
                if filled_member(record) is not None:
                    self._active_at = trio.current_time()
            elif activity != self._activity and view.epoch_seen != self.own_epoch:
                self._active_at = trio.current_time()
            self._activity, self.seen_epoch = activity, view.epoch_seen
            damaged: set[str] = set()
            for member in record.voters:
                connection = store.idle(member.server_id)
                if connection is not None:
                    damaged.update(one.name for one in await connection.list_all() if one.corrupt)
            if not compare or trio.current_time() < self._compare_at:
                return tuple(sorted(damaged)), ()
            self._compare_at = trio.current_time() + watch_compare_s
            compared = await verify_store(store)
            damaged.update(one.directory for one in compared.damaged_directories)
            found = {one.directory for one in compared.differences}
            return tuple(sorted(damaged)), tuple(sorted(found - damaged - {DIRECTORY}))


def _is_at(record: StoreRecord, answer: ServerAnswer) -> bool:
    """Return whether the server is a member, at its address."""
    member = record.member(answer.server_id)
    return member is not None and member.address == answer.address


def _located(
    record: StoreRecord, ours: Sequence[ServerAnswer], present: Collection[bytes]
) -> dict[bytes, str]:
    """Return where members are that are not at their addresses."""
    return {
        one.server_id: one.address
        for one in ours
        if one.server_id not in present and record.member(one.server_id) is not None
    }


def _why_absent(member: Member, seen: ServerSurvey) -> str:
    if any(one.server_id == member.server_id and one.rolled_back for one in seen.answers):
        return ROLLED_BACK
    at_address = next((one for one in seen.answers if one.address == member.address), None)
    if at_address is None:
        return seen.errors.get(member.address, "it does not answer")
    if at_address.server_id != member.server_id:
        return f"server {at_address.server_id.hex()} answers at its address: its disk was wiped or exchanged"
    return "it belongs to another store"


def _why_no_spare(spare: Member, seen: ServerSurvey) -> str:
    at_address = next((one for one in seen.answers if one.address == spare.address), None)
    if at_address is None:
        return seen.errors.get(spare.address, "it does not answer")
    return "" if at_address.server_id == spare.server_id else "another server answers at its address"
