"""What a file of a directory that nobody claims may hold, and what its server promised (protocol.md,
"Version 0", and P-1, P-3, P-8): what is reported as synced exists and stays; one stream at a time, from the
size that the file has; an append of version 1 only behind the content that its sender knows, and not while a
stream has the file locked; nothing is shown that is not synced.

It hears what the server is given and what it says, in that order: what connections hold back or lose is of
no account here.
"""

from typing import TYPE_CHECKING, Any, Final

from dos_protocol.digests import prefix_digest
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.platters import payload_at
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.store.server import Machine

ORACLE: Final = "V0"


class LooseFile:
    """One file. `content`: everything that may be in it; `synced`: how much of that was reported as synced.
    `holder`: the client that streams into it, while its session lives.
    """

    def __init__(self, machine: "Machine", name: str) -> None:
        self.machine = machine
        self.name = name
        self.path = f"d/{LOOSE}/{name}"
        self.content = bytearray()
        self.synced = 0
        self.holder: Any = None

    def begins(self, session: Any, offset: int) -> None:
        """A stream is taken at that size."""
        self._free_for(session, "a stream")
        self._goes_on_at(offset, "a stream")
        self.holder = session

    def streamed(self, data: bytes) -> None:
        """The stream brings more."""
        self.content += data

    def appended(self, session: Any, offset: int, digest: int, data: bytes) -> None:
        """An append of version 1 is taken."""
        self._free_for(session, "an append")
        self._goes_on_at(offset, "an append")
        if prefix_digest(self.content) != digest:
            self._object(f"an append is taken at {offset} behind other content than its sender's (P-3)")
        self.content += data

    def reported(self, written: int, synced: int) -> None:
        """The server reported it: in a status frame, or by a durability ack."""
        if not synced <= written <= len(self.content):
            self._object(f"it tells {written} written, {synced} synced of at most {len(self.content)} bytes")
        self.synced = max(self.synced, synced)
        reported = self.machine.reported  # which damage may have made less than what was once told
        reported[LOOSE, self.name] = max(reported.get((LOOSE, self.name), 0), synced)

    def cut_to(self, size: int) -> None:
        """It was damaged, and a person had it cut to what is good."""
        del self.content[size:]
        self.synced = size

    def returned(self, offset: int, data: bytes) -> None:
        """The server answers a `g`."""
        if self.content[offset : offset + len(data)] != data:
            self._object(f"it shows {len(data)} bytes at {offset} that nobody wrote so")
        if data:
            self._durable(offset + len(data), "shows")

    def listed(self, size: int) -> None:
        """The server lists it."""
        self._durable(size, "lists")
        if size < self.synced and not self.damaged and not self._waits_for_room():
            self._object(f"it lists {size} bytes, {self.synced} were reported as synced")

    def on_platters(self) -> None:
        """At the end, when no client writes: what was reported exists, and nothing else."""
        found = payload_at(self.machine.disk.content(self.path), self.path)
        if not self.content.startswith(found):
            self._object(f"its disk has {len(found)} bytes that nobody wrote so")
        if len(found) < self.synced and not self.damaged:
            self._object(f"its disk has {len(found)} bytes, {self.synced} were reported as synced")

    @property
    def damaged(self) -> bool:
        """Whether the run has damaged it, or its disk gave errors: then its server may say that it is
        damaged, as of any object there (O12)."""
        return self.path in self.machine.damaged or self.machine.had_errors

    def _waits_for_room(self) -> bool:
        """Whether its server could not bring it in order when it started, for want of room: it gives less, or
        nothing, and takes nothing, until there is some (protocol.md, "Start-up", row N). That it then does
        is O12's to see."""
        server = self.machine.server
        state = server.core._tables.find(LOOSE, self.name) if server is not None else None
        return state is not None and state.corrupt_from is not None and state.uncut_bytes > 0

    def _free_for(self, session: Any, what: str) -> None:
        if self.holder is not None and self.holder is not session and self.holder.is_served:
            self._object(f"{what} is taken while another stream has it locked")

    def _goes_on_at(self, offset: int, what: str) -> None:
        if offset > len(self.content) or (offset < self.synced and not self.damaged):
            self._object(
                f"{what} is taken at {offset}; {self.synced} bytes were reported as synced, at most "
                f"{len(self.content)} were written"
            )
        del self.content[offset:]

    def _durable(self, size: int, does: str) -> None:
        durable = len(payload_at(self.machine.disk.stable(self.path), self.path))
        if size > durable and not self.damaged:
            self._object(f"it {does} {size} bytes, {durable} are durable")

    def _object(self, what: str) -> None:
        raise ViolationError(ORACLE, f"{self.machine.name}, {LOOSE}/{self.name}: {what}")


class LooseFiles:
    """Of one machine, for as long as it has one disk."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._disk = machine.disk
        self._files: dict[str, LooseFile] = {}

    def __getitem__(self, name: str) -> LooseFile:
        if self._machine.disk is not self._disk:
            self._disk = self._machine.disk
            self._files.clear()
        return self._files.setdefault(name, LooseFile(self._machine, name))

    def removal_requested(self, name: str) -> None:
        """From now on it may be gone. Not while a client streams into it."""
        file = self[name]
        if file.holder is None or not file.holder.is_served:
            self._machine.reported.pop((LOOSE, name), None)
            file.synced = 0

    def judge(self) -> None:
        """At the end of a run."""
        for name in list(self._files):
            self[name].on_platters()
