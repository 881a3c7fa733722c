"""O9: a refused append has no effect (P-8): no byte of it is in that server's copy, unless it was sent again
and accepted.

An append that is refused because the disk failed has an unknown effect. `POISONED` and `CORRUPT` report that,
so they do not count.
"""

from typing import TYPE_CHECKING, Final

from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_protocol.messages import Append, Opcode, decode
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine

_APPEND: Final = int(Opcode.APPEND)
_MEND: Final = int(Opcode.MEND)
_UNKNOWN_EFFECT: Final = frozenset({int(ErrorCode.POISONED), int(ErrorCode.CORRUPT)})


class NoEffect(Oracle):
    """Checks the copies for bytes of refused appends. `_ends`: where the requested and not refused appends to
    each object end, by session and request.
    """

    number = "O9"

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
        self._paths: dict[tuple[str, int, int], str] = {}
        self._repaired: dict[tuple[str, str], None] = {}

    def request_received(self, machine: "Machine", session: int, directory: str | None, frame: Frame) -> None:
        if frame.opcode != _APPEND or directory == LOOSE:
            if frame.opcode == _MEND:
                self._repaired[machine.name, directory or ""] = None
            return
        append = decode(frame)
        assert isinstance(append, Append), "the opcode is that of APPEND"
        path = f"d/{directory}/{append.name}"
        ends = self._ends.setdefault((machine.name, path), {})
        ends[session, frame.request_id] = append.expected_size + len(append.payload)
        self._paths[machine.name, session, frame.request_id] = path

    def append_refused(self, machine: "Machine", session: int, request_id: int, code: int) -> None:
        path = self._paths.pop((machine.name, session, request_id), None)
        if path is not None and code not in _UNKNOWN_EFFECT:
            del self._ends[machine.name, path][session, request_id]

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            for (name, path), ends in self._ends.items():
                if name != machine.name or (name, path.split("/")[1]) in self._repaired:
                    continue
                found, most = (
                    len(payload_at(machine.disk.after_start().content(path), path)),
                    max(ends.values(), default=0),
                )
                if found > most:
                    self.object(f"{name} has {found} bytes of {path}, everything after {most} was refused")
