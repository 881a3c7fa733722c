"""What a file of an unclaimed directory may contain, and what its server promised (protocol.md, "Version 0",
and P-1, P-3, P-8): what is reported as synced exists and stays; there is one stream at a time, which begins
at the size of the file; an append of version 1 is accepted only after the content that its sender knows, and
not while a stream has the file locked; only synced bytes are returned.

It receives the requests and replies of the server in their order at the server, so delays and losses of
connections do not matter.
"""

from typing import TYPE_CHECKING, Any, Final

from dos_protocol.digests import prefix_digest
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.platters import payload_at
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine

ORACLE: Final = "V0"


class LooseFile:
    """One file. `content`: everything that may be in it; `synced`: how much of that was reported as synced.
    `holder`: the session of the client that streams into it, while it is open.
    """

    def __init__(self, machine: "Machine", name: str) -> None:
        self.machine = machine
        self.name = name
        self.path = f"d/{LOOSE}/{name}"
        self.content = bytearray()
        self.synced = 0
        self.holder: Any = None

    def begins(self, session: Any, offset: int) -> None:
        """A stream is accepted at that size."""
        self._check_lock(session, "a stream")
        self._check_offset(offset, "a stream")
        self.holder = session

    def streamed(self, data: bytes) -> None:
        """More bytes of the stream arrived."""
        self.content += data

    def appended(self, session: Any, offset: int, digest: int, data: bytes) -> None:
        """An append of version 1 is accepted."""
        self._check_lock(session, "an append")
        self._check_offset(offset, "an append")
        if prefix_digest(self.content) != digest:
            self._object(f"an append is accepted at {offset} after other content than its sender's (P-3)")
        self.content += data

    def reported(self, written: int, synced: int) -> None:
        """The server reported it: in a status frame, or by a durability ack."""
        if not synced <= written <= len(self.content):
            self._object(
                f"it reports {written} written, {synced} synced of at most {len(self.content)} bytes"
            )
        self.synced = max(self.synced, synced)
        reported = self.machine.reported  # may be less than what was reported before, because of damage
        reported[LOOSE, self.name] = max(reported.get((LOOSE, self.name), 0), synced)

    def cut_to(self, size: int) -> None:
        """It was damaged, and a person cut it to its undamaged part."""
        del self.content[size:]
        self.synced = size

    def returned(self, offset: int, data: bytes) -> None:
        """The server answered a `g`."""
        if self.content[offset : offset + len(data)] != data:
            self._object(f"it returns {len(data)} bytes at {offset} that differ from what was written")
        if data:
            self._durable(offset + len(data), "returns")

    def listed(self, size: int) -> None:
        """The server listed it."""
        self._durable(size, "lists")
        if size < self.synced and not self.damaged and not self._waits_for_space():
            self._object(f"it lists {size} bytes, {self.synced} were reported as synced")

    def on_platters(self) -> None:
        """Check at the end, when no client writes, that what was reported exists, and nothing else."""
        found = payload_at(self.machine.disk.after_start().content(self.path), self.path)
        if not self.content.startswith(found):
            self._object(f"its disk has {len(found)} bytes that differ from what was written")
        if len(found) < self.synced and not self.damaged:
            self._object(f"its disk has {len(found)} bytes, {self.synced} were reported as synced")

    @property
    def damaged(self) -> bool:
        """Return whether the run has damaged it, or its disk returned errors: then its server may report it
        as damaged, like any object there (O12)."""
        return self.path in self.machine.damaged or self.machine.had_errors

    def _waits_for_space(self) -> bool:
        """Return whether its server could not repair it at the start, for lack of space: until there is
        space, it returns less, or nothing, and accepts nothing (protocol.md, "Start-up", row N). O12 checks
        that it recovers then."""
        server = self.machine.server
        state = server.core._tables.find(LOOSE, self.name) if server is not None else None
        return state is not None and state.corrupt_from is not None and state.uncut_bytes > 0

    def _check_lock(self, session: Any, what: str) -> None:
        if self.holder is not None and self.holder is not session and self.holder.is_served:
            self._object(f"{what} is accepted while another stream has it locked")

    def _check_offset(self, offset: int, what: str) -> None:
        if offset > len(self.content) or (offset < self.synced and not self.damaged):
            self._object(
                f"{what} is accepted at {offset}; {self.synced} bytes were reported as synced, at most "
                f"{len(self.content)} were written"
            )
        del self.content[offset:]

    def _durable(self, size: int, does: str) -> None:
        durable = len(payload_at(self.machine.disk.after_start(durable=True).stable(self.path), self.path))
        if size > durable and not self.damaged:
            self._object(f"it {does} {size} bytes, {durable} are durable")

    def _object(self, what: str) -> None:
        raise ViolationError(ORACLE, f"{self.machine.name}, {LOOSE}/{self.name}: {what}")


class LooseFiles:
    """The files of one machine, on its current disk."""

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
        """A client requests to remove it: from now on it may be gone, unless another client streams into
        it."""
        file = self[name]
        if file.holder is None or not file.holder.is_served:
            self._machine.reported.pop((LOOSE, name), None)
            file.synced = 0

    def judge(self) -> None:
        """Check all files at the end of a run."""
        for name in list(self._files):
            self[name].on_platters()
