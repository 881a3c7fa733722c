"""A store without a claim: read views of directories, and reads from any member. The journal's
`StorePort`."""

from collections.abc import AsyncGenerator, Mapping

from msgspec.structs import replace

from dos_client import Bookmark
from dos_client.core.agreement import DirectoryView, view_of
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import inspect_timeout_s
from dos_protocol.errors import BrokenConnectionError, CorruptError, DosError, NotFoundError
from dos_protocol.messages import DirectoryOpened
from dos_protocol.store_record import Member, StoreRecord
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network
from tests.sim.store.session import Session


class SimStore:
    """A process's view of the store. `inspect` opens the sessions, `close` ends them."""

    def __init__(self, process: Process, network: Network, record: StoreRecord) -> None:
        self.process = process
        self.network = network
        self.record = record
        self.spoiled: Mapping[tuple[str, str], tuple[int, frozenset[bytes]]] = {}
        """As in the history of the run."""
        self._sessions: dict[bytes, Session] = {}

    async def inspect(self, directory: str, *, keep: bool = False, sound: bool = False) -> DirectoryView:
        """Return what the members report of a directory within `look_timeout_s`. Raises
        QuorumUnavailableError if too few answer. `keep`: use the open sessions of the previous call. `sound`:
        without damaged objects, also what is spoiled."""
        kept = {one: session for one, session in self._sessions.items() if keep and session.failure is None}
        self._sessions = {one: session for one, session in self._sessions.items() if one not in kept}
        self.close()
        opened: dict[bytes, DirectoryOpened] = {}
        errors: dict[str, DosError] = {}
        changed = Signal()

        async def open_at(member: Member) -> None:
            session = kept.get(member.server_id) or Session(self.process, self.network, member.address)
            try:
                if member.server_id not in kept:
                    await session.open(self.record.store_id, self.record.generation)
                if session.server_id != member.server_id:
                    raise BrokenConnectionError("another server")
                opened[member.server_id] = await session.open_directory(directory)
                self._sessions[member.server_id] = session
            except DosError as error:
                errors[member.address] = error
                session.fail(BrokenConnectionError("not used"))
            changed.set()

        for member in self.record.members:
            self.process.start("inspect", open_at(member))
        deadline = self.process.now + inspect_timeout_s
        while len(opened) + len(errors) < len(self.record.members) and self.process.now < deadline:
            await self.process.wait(changed, deadline - self.process.now)
        if sound:
            opened = {one: self._with_spoiled(one, directory, answer) for one, answer in opened.items()}
        return view_of(directory, self.record, dict(opened), dict(errors), sound=sound)

    def _with_spoiled(self, member: bytes, directory: str, answer: DirectoryOpened) -> DirectoryOpened:
        entries = [
            replace(info, corrupt=True) if self.damage(directory, info.name, member) is not None else info
            for info in answer.entries
        ]
        return DirectoryOpened(answer.epoch, answer.writer_id, tuple(entries))

    def damage(self, directory: str, name: str, member: bytes | None) -> int | None:
        """Return where the damage of a member's copy begins. member: None for any, if all have it."""
        offset, members = self.spoiled.get((directory, name), (0, frozenset[bytes]()))
        voters = {one.server_id for one in self.record.voters}
        return offset if member in members or (member is None and members and voters <= members) else None

    def spoil(self, directory: str, name: str, offset: int, member: bytes | None, data: bytes) -> bytes:
        """Return what a read of these bytes returns. Raises CorruptError where the damage begins."""
        begin = self.damage(directory, name, member)
        if begin is None or offset + len(data) <= begin:
            return data
        if offset >= begin:
            raise CorruptError(f"{name} is damaged from {begin} on", actual=begin)
        return data[: begin - offset]

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        """Return bytes from the members of the last `inspect`: the longest answer."""
        error: DosError = NotFoundError(f"no member has {name}")
        best = b""
        for member, session in list(self._sessions.items()):
            if session.failure is None:
                try:
                    data = await session.get(name, offset, max_bytes)
                    data = self.spoil(directory, name, offset, member, data)
                except DosError as refused:
                    error = refused
                else:
                    best = max(best, data, key=len)
                    if len(best) == max_bytes:
                        break
        if not best:
            raise error
        return best

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        """Raise QuorumUnavailableError: the journal then reads from any member and compares its own
        digests."""
        if offset >= 0:
            raise QuorumUnavailableError(f"no stream of {directory}/{name} here", [])
        yield b""

    def close(self) -> None:
        """End the sessions."""
        for session in self._sessions.values():
            session.fail(BrokenConnectionError("closed"))
        self._sessions.clear()
