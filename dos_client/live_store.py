"""A store: the servers that replicate together, as one client uses them. Its membership in use, and the
operations on the store as a whole.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import trio

from dos_client import randomness
from dos_client.arguments import check_number, check_numbers, check_run, check_text
from dos_client.core.agreement import DirectoryView, trusted_members, view_of
from dos_client.core.hedging import Pace
from dos_client.core.logs import record_in
from dos_client.core.membership import Membership
from dos_client.core.quorum import Quorums, refusal_of_token
from dos_client.core.status import MemberStatus, StoreCounters
from dos_client.errors import QuorumUnavailableError
from dos_client.file_token import FileToken
from dos_client.limits import answers_grace_s, inspect_timeout_s
from dos_client.randomness import backoff_s
from dos_client.reading.committed import (
    Bookmark,
    CommittedReads,
    Growth,
    Snapshot,
    Stream,
    committed_stream,
    follow,
    read_committed,
)
from dos_client.reading.damage import Damage
from dos_client.reading.member_queries import Readers, read_any
from dos_client.sessions.connection import Connection, ServerAccess, fresh_failure
from dos_client.sessions.discovery import find_membership
from dos_client.sessions.members import Watch, Witnesses
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim, member_in_store, of_member
from dos_protocol.errors import DosError, LocalProtocolError, UnauthorisedError
from dos_protocol.messages import NO_DIGEST, DirectoryOpened, StatResult
from dos_protocol.names import NO_ID, check_id, check_name, id_text
from dos_protocol.store_record import Member, StoreRecord

log: Final = logging.getLogger("dos.client")


class Store:
    """An open store, made by `open_store` or `connect`. Its methods run in the trio thread that made it.

    `record`: the store record in use. `server_record`: for `connect`, the record of the server's store.
    `located`: where members are that moved. `wrote`: set after the first claim. `readers`: sessions without a
    claim.
    """

    def __init__(
        self,
        url: DosUrl,
        record: StoreRecord,
        nursery: trio.Nursery,
        access: ServerAccess,
        located: Mapping[bytes, str],
    ) -> None:
        self.url, self.record = url, record
        self.access, self.located = access, located
        self.rng = randomness.stream()
        self.run_token = trio.lowlevel.current_trio_token()
        self.server_record: StoreRecord | None = None
        self.counts, self.damage, self.pace = StoreCounters(), Damage(), Pace()
        self._nursery = nursery
        self._claims, self._watches = list[Claim](), dict[bytes, Watch]()
        self.readers, self.witnesses = Readers(self), Witnesses(self)
        self.wrote, self._reread, self._change = trio.Event(), trio.Event(), trio.Event()
        nursery.start_soon(self.witnesses.run)
        self._watch_members()

    def access_problem(self) -> str:
        """Return which members the token or a certificate keeps from use, and why; "" if none."""
        return "; ".join(watch.refusal for watch in self._watches.values() if watch.refusal)

    def unavailable(self, error: DosError) -> DosError:
        # The refusal of the token, if so many members refuse it that the others are not enough. A token of a
        # file may be replaced, so its refusal is not final.
        failures = {one: watch.failure for one, watch in self._watches.items() if watch.connection is None}
        refusal = refusal_of_token(Quorums(self.record), failures)
        if refusal is None:
            return error
        if not isinstance(self.access.token, FileToken):
            return fresh_failure(refusal)
        return QuorumUnavailableError(
            f"members refuse the token in {self.access.token.path}: {refusal.args[0]}",
            remedy="write a valid token into the file: it is read again",
        )

    @property
    def of_one_server(self) -> bool:
        """Whether this is a connection to a single server (`connect`)."""
        return self.record.store_id == NO_ID

    def members(self) -> list[MemberStatus]:
        """Return the status of every member of the record, as this client sees it."""
        return [
            member_in_store(watch, of_member(self._claims, one), str(self.damage.of_member(one) or ""))
            for one, watch in self._watches.items()
        ]

    def full_members(self) -> list[str]:
        """Return the addresses of members that refuse the appends of a claim because their disk is full."""
        links = [link for claim in self._claims for link in claim.links()]
        return sorted({one.member.address for one in links if one.outage.is_full and not one.copies.worked})

    def claims(self) -> list[Claim]:
        return self._claims[:]

    async def claim(
        self, directory: str, epoch: int, writer_id: bytes, *, disregard: Collection[str] = ()
    ) -> Claim:
        """Become the directory's only writer, on at least F members (R1) at first. Waits while fewer are
        available.

        `disregard`: objects that, if damaged, do not make their member doubtful (R4): by committed records
        the owner does not continue in them. Raises FencedError if a member holds a higher epoch, or this
        epoch for another writer. If cancelled, members may still hold the claim.
        """
        self._refuse_in_store()
        check_number(epoch, "epoch", least=1)
        if check_id(writer_id, "writer_id") == NO_ID:
            raise LocalProtocolError("writer_id must not be zero")
        self.wrote.set()
        claim = await self._start_claim(Claim(self, directory, epoch, writer_id), disregard)
        try:
            await claim.wait_granted()
        except BaseException:
            with trio.CancelScope(shield=True):
                await claim.aclose()
            raise
        return claim

    async def unclaimed(self, directory: str) -> Claim:
        """Write a directory of a single server that was never claimed, without fencing (`connect` only).
        Raises FencedError if it was claimed; if it is claimed later, the waits do.
        """
        self._refuse_in_store()
        if not self.of_one_server:
            raise LocalProtocolError("a store's directories must be claimed; unclaimed() needs connect()")
        claim = await self._start_claim(Claim(self, directory, 0, NO_ID, claiming=False))
        await claim.wait_granted()
        return claim

    async def inspect(self, directory: str, *, as_files: bool = False, sound: bool = False) -> DirectoryView:
        """Return what at least F members hold of a directory. Without a claim, that may change at any time.
        `as_files`, `sound`: see `view_of`. Raises QuorumUnavailableError.
        """
        check_name(directory)
        while True:
            generation, record = self.record.generation, record_in(self.record, directory)
            opened, errors = await self._open_on_members(directory, record)
            if self.record.generation == generation and not self.witnesses.rolled_back & opened.keys():
                try:
                    return view_of(directory, record, opened, errors, as_files=as_files, sound=sound)
                except (QuorumUnavailableError, UnauthorisedError) as error:
                    raise self.unavailable(error) from error

    async def list_directories(self, prefix: str = "") -> list[str]:
        """Return the names of directories that any of F members has. Raises QuorumUnavailableError."""
        check_text(prefix, "prefix")
        quorums, names = Quorums(self.record), set[str]()
        answered: dict[bytes, bool] = {}
        errors: dict[str, str] = {}

        async def list_member(member: Member) -> None:
            try:
                connection = await self._watched(member, patient=True)
                names.update(info.name for info in await connection.list_all(prefix))
                answered[member.server_id] = True
            except DosError as error:
                errors[member.address] = str(error.args[0])

        await self._all_members(list_member, lambda: quorums.can_take_over(answered), self.record)
        if not quorums.can_take_over(answered.keys() - self.witnesses.rolled_back):
            missing = [one for one in self._watches.values() if one.member.server_id not in answered]
            error = QuorumUnavailableError(
                f"{quorums.claims_needed} members are needed to list directories, {len(answered)} answered",
                [errors.get(one.member.address, f"{one.member.address}: {one.error}") for one in missing],
            )
            raise self.unavailable(error)
        return sorted(names)

    async def read(
        self, directory: str, name: str, offset: int, max_bytes: int, *, committed: bool = False
    ) -> bytes:
        """Read bytes of an object from any undamaged member. Hedged. They are durable on that member; a read
        is short only at its end.

        `committed`: they are on a quorum and verified against its digest. Raises NotFoundError or
        PastEndError if F members report that, CorruptError, QuorumUnavailableError, BrokenConnectionError.
        """
        check_numbers(offset=offset, max_bytes=max_bytes)
        reader = read_committed if committed else read_any
        return await reader(self, directory, name, offset, max_bytes)

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> Stream:
        """Read committed bytes from `offset` to `end` (None: what is acknowledged now), ahead from several
        members. Close it (`aclosing`) if you leave it early. Raises as `read`. seen: see `Bookmark`.
        """
        check_numbers(offset=offset, end=end)
        committed = CommittedReads(self, directory, name)
        snapshot = Snapshot(self, committed)
        return committed_stream(self, committed, snapshot, offset, end, seen=seen)

    def growth(self, directory: str, name: str, size: int) -> Growth:
        """Return an async context manager that receives what members report of an object beyond `size`."""
        return Growth(self, CommittedReads(self, directory, name), check_number(size, "size"))

    def follow(self, directory: str, name: str, offset: int = 0) -> Stream:
        """Read committed bytes from `offset` on, without end, as they are committed. It need not exist yet.

        No member failure causes a gap or a repeat. Close it (`aclosing`) when done. Raises CorruptError if
        members contradict each other and no quorum decides. After the object is deleted it waits, also if one
        of that name is made anew.
        """
        return follow(self, directory, name, check_number(offset, "offset"))

    async def stat(self, directory: str, name: str, digest_at: int | None = None) -> dict[bytes, StatResult]:
        """Return sizes and a prefix digest of an object, by server id of each member that answers."""
        check_numbers(digest_at=digest_at)
        check_name(name)
        at = NO_DIGEST if digest_at is None else digest_at
        results: dict[bytes, StatResult] = {}
        last: list[DosError] = []

        async def stat_member(member: Member) -> None:
            try:
                connection = await self.readers.session(member, directory).connection()
                results[member.server_id] = await connection.stat(name, at)
            except DosError as error:
                last.append(error)

        await self._all_members(stat_member, lambda: False, self.record)
        if not results and last:
            raise last[-1]
        return {one: result for one, result in results.items() if one not in self.witnesses.rolled_back}

    async def ping(self) -> dict[str, float | str]:
        """Return the seconds of one round trip, or the error, by member address."""
        results: dict[str, float | str] = {}

        async def ping_member(member: Member) -> None:
            try:
                results[member.address] = await (await self._watched(member)).ping()
            except DosError as error:
                results[member.address] = str(error.args[0])

        await self._all_members(ping_member, lambda: False, self.record)
        return results

    # For claims, links and readers

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(task)

    async def reader(self, member: Member, directory: str) -> Connection:
        return await self.readers.session(member, directory).connection()

    async def reopened(self, member: Member, directory: str) -> DirectoryOpened:
        return await self.readers.session(member, directory).opened()

    def is_connected(self, server_id: bytes) -> bool:
        return self.idle(server_id) is not None

    def idle(self, server_id: bytes) -> Connection | None:
        return self._watches[server_id].connection if server_id in self._watches else None

    async def wait_moved(self, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            await self._change.wait()

    def forget(self, claim: object) -> None:
        self._claims = [one for one in self._claims if one is not claim]

    def member_moved(self) -> None:
        self._change.set()
        self._change = trio.Event()

    def reread_membership(self) -> None:
        self._reread.set()

    async def keep_membership(self) -> None:
        attempt = 0
        while True:
            await self._reread.wait()
            self._reread = trio.Event()
            while True:
                membership, _ = await find_membership(
                    [*self.url.servers, *(member.address for member in self.record.members)],
                    self.access,
                    store_id=self.record.store_id,
                    above=self.record.generation,  # writers wait here, and the replaced member may be silent
                    undecided_s=answers_grace_s * 2 ** min(attempt, 5),  # slow members may be needed
                )
                self._adopt(membership)
                newest = membership.newest
                attempt = 0 if newest == self.record else attempt + 1
                if newest is None or newest.generation <= self.record.generation:
                    break
                await trio.sleep(backoff_s(attempt, self.rng.random()))

    def _adopt(self, membership: Membership) -> None:
        record = membership.record
        if record is None or record.generation <= self.record.generation:
            return
        log.info("store %s is at generation %d", id_text(record.store_id), record.generation)
        self.record = record
        self.readers.end_all()
        members = [member.server_id for member in record.members]
        self.damage.keep_only(members)
        self.pace.keep_only(members)
        self._watch_members()
        for claim in list(self._claims):
            claim.record_changed()
        self.member_moved()

    async def wait_generation(self, generation: int) -> None:
        while self.record.generation < generation:
            self.reread_membership()
            await self.wait_moved(1.0)

    def _watch_members(self) -> None:
        for watch in self._watches.values():
            watch.scope.cancel()
        self._watches = {member.server_id: Watch(self, member) for member in self.record.members}
        for watch in self._watches.values():
            self._nursery.start_soon(watch.run)

    async def _start_claim(self, claim: Claim, disregard: Collection[str] = ()) -> Claim:
        check_run(self.run_token)
        claim.disregard = frozenset(disregard)
        self._claims.append(claim)
        await self._nursery.start(claim.run)
        return claim

    def _refuse_in_store(self) -> None:
        if self.server_record is not None:
            servers = ",".join(member.address for member in self.server_record.members)
            raise LocalProtocolError(
                f"{self.url.servers[0]} belongs to store {id_text(self.server_record.store_id)}",
                remedy=f"open the store: dos://{servers}",
            )

    async def _watched(self, member: Member, *, patient: bool = False) -> Connection:
        """Wait for the idle session with a member. Unless `patient`, a failed attempt to connect raises."""
        while True:
            watch = self._watches.get(member.server_id)
            if watch is not None and watch.connection is not None:
                return watch.connection
            if watch is None:
                raise QuorumUnavailableError(f"{member.address}: no longer a member")
            if watch.failure is not None and not patient:
                raise QuorumUnavailableError(f"{member.address}: {watch.error}") from watch.failure
            await self.wait_moved(0.05)

    async def _open_on_members(
        self, directory: str, record: StoreRecord
    ) -> tuple[dict[bytes, DirectoryOpened], dict[str, DosError]]:
        quorums = Quorums(record)
        opened: dict[bytes, DirectoryOpened] = {}
        errors: dict[str, DosError] = {}

        async def open_on(member: Member) -> None:
            attempt = 0
            while True:
                try:
                    opened[member.server_id] = await self.readers.session(member, directory).opened()
                except DosError as error:
                    errors[member.address] = error
                else:
                    errors.pop(member.address, None)
                    return
                attempt += 1
                await trio.sleep(backoff_s(attempt, self.rng.random()))

        await self._all_members(open_on, lambda: quorums.can_take_over(trusted_members(opened)), record)
        return opened, errors

    async def _all_members(
        self, query: Callable[[Member], Awaitable[None]], enough: Callable[[], bool], record: StoreRecord
    ) -> None:
        """Query all members at once. After enough have answered, the others get `answers_grace_s` more."""
        check_run(self.run_token)
        done = trio.Event()
        remaining = len(record.members)

        async def query_member(member: Member) -> None:
            nonlocal remaining
            await query(member)
            remaining -= 1
            if enough() or not remaining:
                done.set()

        with trio.move_on_after(inspect_timeout_s):
            async with trio.open_nursery() as nursery:
                for member in record.members:
                    nursery.start_soon(query_member, member)
                await done.wait()
                if remaining:
                    nursery.cancel_scope.deadline = trio.current_time() + answers_grace_s
