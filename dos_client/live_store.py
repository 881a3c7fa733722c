"""A store: the servers that replicate together, seen from one client.

Rules of this file: the membership in use, and what can be asked of the store as a whole. Claims
are in `claim`, reads in `reading`, the making and changing of stores in `founding` and `replacing`.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dos_client import randomness
from dos_client.arguments import check_number, check_numbers, check_run, check_text
from dos_client.core.backoff import backoff_s
from dos_client.core.hedging import Pace
from dos_client.core.membership import Membership
from dos_client.core.quorum import Quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import answers_grace_s, look_timeout_s
from dos_client.reading.committed import CommittedReads
from dos_client.reading.damage import Damage
from dos_client.reading.following import Growth, follow
from dos_client.reading.sessions import Readers
from dos_client.reading.store_reads import read_any
from dos_client.reading.streaming import Bookmark, Snapshot, Stream, committed_stream, read_committed
from dos_client.sessions.connection import Connection
from dos_client.sessions.directory_view import DirectoryView, trusted_members, view_of
from dos_client.sessions.discovery import find_membership
from dos_client.sessions.members import MemberStatus, Watch
from dos_client.sessions.witnesses import Witnesses
from dos_client.status.claim_status import member_in_store
from dos_client.status.counters import StoreCounters
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim
from dos_protocol.errors import DosError, LocalProtocolError
from dos_protocol.names import NO_ID, check_id, check_name, id_text
from dos_protocol.store_record import Member, StoreRecord
from dos_protocol.vocabulary import DirectoryOpened, StatResult

log: Final = logging.getLogger("dos.client")


class Store:
    """See the module. Made by `open_store` and `connect`; all its methods belong to the trio thread that
    made it.

    `wrote`: set once anything was claimed.
    `record`: the store record in use. `server_record`: for `connect`, the record of the server's store, if
    any. `counts`: what was done so far. `damage`: the copies that were found to be wrong. `pace`: how fast
    members answer reads. `readers`: the sessions without a claim. `witnesses`: whose disks went back."""

    def __init__(
        self, url: DosUrl, record: StoreRecord, nursery: trio.Nursery, *, token: bytes = b"", client: str = ""
    ) -> None:
        self.url = url
        self.record = record
        self.token = token
        self.client = client
        self.rng = randomness.stream()
        self.run_token = trio.lowlevel.current_trio_token()
        self.server_record: StoreRecord | None = None
        self.counts, self.damage, self.pace = StoreCounters(), Damage(), Pace()
        self.wrote = trio.Event()
        self._nursery = nursery
        self._claims: dict[Claim, None] = {}
        self._watches: dict[bytes, Watch] = {}
        self.readers = Readers(self)
        self.witnesses = Witnesses(self)
        self._reread, self._change = trio.Event(), trio.Event()
        nursery.start_soon(self.witnesses.run)
        self._watch_members()

    @property
    def of_one_server(self) -> bool:
        """Whether this speaks to one server and to no store (`connect`)."""
        return self.record.store_id == NO_ID

    def members(self) -> list[MemberStatus]:
        """Every member of the record, as this client sees it now."""
        return [member_in_store(self, member) for member in self.record.members]

    def claims(self) -> list[Claim]:
        """The claims that are open."""
        return list(self._claims)

    async def claim(self, directory: str, epoch: int, writer_id: bytes) -> Claim:
        """Become the directory's one writer, on F members at least (R1); the others are claimed as they come.

        Waits as long as fewer than F are there. Raises FencedError when a member holds a higher epoch, or
        this one for another writer. When cancelled, members may hold the claim: that fences older writers,
        and nothing else."""
        self._refuse_in_store()
        check_number(epoch, "epoch", least=1)
        if check_id(writer_id, "writer_id") == NO_ID:
            raise LocalProtocolError("a claim has a writer id that is not zero")
        self.wrote.set()
        claim = await self._begin(Claim(self, directory, epoch, writer_id))
        try:
            await claim.wait_granted()
        except BaseException:
            with trio.CancelScope(shield=True):
                await claim.aclose()
            raise
        return claim

    async def unclaimed(self, directory: str) -> Claim:
        """Write a directory of one server that nobody ever claimed: no fencing, a convenience (`connect`
        only). Raises FencedError when somebody did; when somebody does later, its waits do."""
        self._refuse_in_store()
        if not self.of_one_server:
            raise LocalProtocolError(
                "a store's directories are claimed; only one server alone is written without"
            )
        claim = await self._begin(Claim(self, directory, 0, NO_ID, claiming=False))
        await claim.wait_granted()
        return claim

    async def look(self, directory: str, *, as_files: bool = False) -> DirectoryView:
        """What F members, or more, hold of a directory. Claims nothing, and promises nothing about what
        comes next. `as_files`: where nobody ever claimed it, damaged files are left out.

        Raises QuorumUnavailableError when fewer answer in time."""
        check_name(directory)
        while True:
            record = self.record
            opened, errors = await self._open_on_members(directory)
            if self.record == record and not self.witnesses.rolled_back & opened.keys():
                return view_of(directory, record, opened, errors, as_files=as_files)

    async def list_directories(self, prefix: str = "") -> list[str]:
        """Names of directories that any of F members has. Raises QuorumUnavailableError."""
        check_text(prefix, "prefix")
        quorums, names = Quorums(self.record), set[str]()
        asked: dict[bytes, bool] = {}
        errors: dict[str, str] = {}

        async def ask(member: Member) -> None:
            try:
                connection = await self._watched(member, patient=True)
                names.update(info.name for info in await connection.list_all(prefix))
                asked[member.server_id] = True
            except DosError as error:
                errors[member.address] = str(error.args[0])

        await self._all_members(ask, lambda: quorums.can_take_over(asked))
        if not quorums.can_take_over(asked.keys() - self.witnesses.rolled_back):
            away = [self._watches[one.server_id] for one in self.record.members if one.server_id not in asked]
            raise QuorumUnavailableError(
                f"{quorums.claims_needed} members are needed to list directories, {len(asked)} answered",
                [errors.get(one.member.address, f"{one.member.address}: {one.error}") for one in away],
            )
        return sorted(names)

    async def read(
        self, directory: str, name: str, offset: int, max_bytes: int, *, committed: bool = False
    ) -> bytes:
        """Bytes of an object, from any good member. Hedged: when one is slow, another is asked too.

        They are durable on the member that gave them, and the read is short only at that member's end;
        `committed`: they are on a quorum, checked against its digest, and the read is short only at the end
        of what was acknowledged. Raises NotFoundError or PastEndError when F members say so, CorruptError as
        members answered; QuorumUnavailableError or BrokenConnectionError when too few could be asked for
        some seconds."""
        check_numbers(offset=offset, max_bytes=max_bytes)
        how = read_committed if committed else read_any
        return await how(self, directory, name, offset, max_bytes)

    def stream(
        self,
        directory: str,
        name: str,
        offset: int = 0,
        end: int | None = None,
        bookmark: Bookmark | None = None,
    ) -> Stream:
        """Committed bytes from `offset` to `end`, or as far as the object is acknowledged now, read ahead
        from several members. Close it (`aclosing`) when you leave it early. Raises as `read`.

        bookmark: where a reader keeps how far it has come, when it reads on again and again up to an `end`
        that it knows to be committed: then one question and its answer are all that it takes. Where he has
        not been, two."""
        check_numbers(offset=offset, end=end)
        committed = CommittedReads(self, directory, name)
        snapshot = Snapshot(self, committed)
        return committed_stream(self, committed, snapshot, offset, end, bookmark=bookmark)

    def growth(self, directory: str, name: str, size: int) -> Growth:
        """What members tell of an object beyond `size`, as soon as they have it; to be entered."""
        return Growth(self, CommittedReads(self, directory, name), check_number(size, "size"))

    def follow(self, directory: str, name: str, offset: int = 0) -> Stream:
        """Committed bytes from `offset` on, for ever, as they become so; the object may come later. Survives
        the death of any member without a gap or a repeat. Close it (`aclosing`) when you are done.

        Raises CorruptError when members contradict each other and no quorum settles it. When the object is
        deleted it waits, and gives nothing of another object that is made of the name."""
        return follow(self, directory, name, check_number(offset, "offset"))

    async def stat(self, directory: str, name: str, digest_at: int | None = None) -> dict[bytes, StatResult]:
        """Sizes of an object, and the digest of a prefix, on every member that answers."""
        check_numbers(digest_at=digest_at)
        check_name(name)
        found: dict[bytes, StatResult] = {}
        last: list[DosError] = []

        async def ask(member: Member) -> None:
            try:
                connection = await self.readers.session(member, directory).connection()
                found[member.server_id] = (
                    await connection.stat(name)
                    if digest_at is None
                    else await connection.stat(name, digest_at)
                )
            except DosError as error:
                last.append(error)

        await self._all_members(ask, lambda: False)
        if not found and last:
            raise last[-1]
        return found

    async def ping(self) -> dict[str, float | str]:
        """Per member's address the seconds of one round trip, or the error."""
        found: dict[str, float | str] = {}

        async def ask(member: Member) -> None:
            try:
                found[member.address] = await (await self._watched(member)).ping()
            except DosError as error:
                found[member.address] = str(error.args[0])

        await self._all_members(ask, lambda: False)
        return found

    # What claims, links and readers use

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task that lives as long as the store."""
        self._nursery.start_soon(task)

    async def reader(self, member: Member, directory: str) -> Connection:
        """A session without a claim in a directory of one member. Raises BrokenConnectionError."""
        return await self.readers.session(member, directory).connection()

    async def reopened(self, member: Member, directory: str) -> DirectoryOpened:
        """A directory of one member as it is now. Raises BrokenConnectionError."""
        return await self.readers.session(member, directory).opened()

    def owed(self, member: Member, directory: str) -> int:
        """Answers that a reader session still owes to nobody in particular."""
        return self.readers.owed(member, directory)

    def is_connected(self, server_id: bytes) -> bool:
        """Whether the member is there, as far as is known."""
        watch = self._watches.get(server_id)
        return watch is not None and watch.connection is not None

    async def wait_moved(self, timeout_s: float) -> None:
        """Wait until a member comes or goes, or the time is up."""
        with trio.move_on_after(timeout_s):
            await self._change.wait()

    def watch(self, member: Member) -> Watch:
        """The idle session with a member."""
        return self._watches[member.server_id]

    def forget(self, claim: Claim) -> None:
        """The claim is over."""
        self._claims.pop(claim, None)

    def member_moved(self) -> None:
        """A member came or went."""
        self._change.set()
        self._change = trio.Event()

    def reread_membership(self) -> None:
        """A server said that it has a newer record."""
        self._reread.set()

    async def keep_membership(self) -> None:
        """The task that follows generations."""
        while True:
            await self._reread.wait()
            self._reread = trio.Event()
            attempt = 0
            while True:
                addresses = [*self.url.servers, *(member.address for member in self.record.members)]
                membership, _ = await find_membership(
                    addresses, token=self.token, client=self.client, store_id=self.record.store_id
                )
                self._take(membership)
                newest = membership.newest
                if newest is None or newest.generation <= self.record.generation:
                    break
                attempt += 1
                await trio.sleep(backoff_s(attempt, self.rng.random()))

    def _take(self, membership: Membership) -> None:
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
        """Wait until a record of that generation, or a later one, is in use."""
        while self.record.generation < generation:
            self.reread_membership()
            await self.wait_moved(1.0)

    def _watch_members(self) -> None:
        for watch in self._watches.values():
            watch.scope.cancel()
        self._watches = {member.server_id: Watch(self, member) for member in self.record.members}
        for watch in self._watches.values():
            self._nursery.start_soon(watch.run)

    async def _begin(self, claim: Claim) -> Claim:
        check_run(self.run_token)
        self._claims[claim] = None
        await self._nursery.start(claim.run)
        return claim

    def _refuse_in_store(self) -> None:
        if self.server_record is not None:
            servers = ",".join(member.address for member in self.server_record.members)
            raise LocalProtocolError(
                f"{self.url.servers[0]} is in store {id_text(self.server_record.store_id)}: it is not alone",
                remedy=f"use the store: dos://{servers}",
            )

    async def _watched(self, member: Member, *, patient: bool = False) -> Connection:
        """The idle session with a member, waiting for it if it is just being made; `patient`: or being made
        anew."""
        while True:
            watch = self._watches.get(member.server_id)
            if watch is not None and watch.connection is not None:
                return watch.connection
            if watch is None or (watch.tried and not patient):
                raise QuorumUnavailableError(
                    f"{member.address}: {watch.error if watch is not None else 'no member any more'}"
                )
            await self.wait_moved(0.05)

    async def _open_on_members(
        self, directory: str
    ) -> tuple[dict[bytes, DirectoryOpened], dict[str, DosError]]:
        """A directory on every member that answers before the time is up; and the last error of each other
        one."""
        quorums = Quorums(self.record)
        opened: dict[bytes, DirectoryOpened] = {}
        errors: dict[str, DosError] = {}

        async def ask(member: Member) -> None:
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

        await self._all_members(ask, lambda: quorums.can_take_over(trusted_members(opened)))
        return opened, errors

    async def _all_members(
        self, ask: Callable[[Member], Awaitable[None]], enough: Callable[[], bool]
    ) -> None:
        """Ask all members at once. When enough have answered, the others get a moment more."""
        check_run(self.run_token)
        done = trio.Event()
        remaining = len(self.record.members)

        async def one(member: Member) -> None:
            nonlocal remaining
            await ask(member)
            remaining -= 1
            if enough() or not remaining:
                done.set()

        with trio.move_on_after(look_timeout_s):
            async with trio.open_nursery() as nursery:
                for member in self.record.members:
                    nursery.start_soon(one, member)
                await done.wait()
                if remaining:
                    nursery.cancel_scope.deadline = trio.current_time() + answers_grace_s
