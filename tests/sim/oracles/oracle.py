"""The interface of oracles, and the bench that passes the events of a run to them.

An event is reported to the bench by the method of its name, and the bench calls the oracles that have this
method. An oracle keeps its own state; shared state is in `History`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dos_protocol.frames import Frame
from dos_protocol.messages import ObjectInfo

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine
    from tests.sim.store.server import Server


class ViolationError(Exception):
    """A promise is broken. `oracle`: the number of the oracle that detected it."""

    def __init__(self, oracle: str, what: str) -> None:
        super().__init__(f"{oracle}: {what}")
        self.oracle = oracle


class Oracle:
    """One condition that must be true. It overrides the methods of the events that it uses. `number`: its
    name.

    took_over      a take-over is done and its start acknowledged; `found`: the records that it read
    acknowledged   a record was acknowledged to its writer
    returned       a reader received these records, and must have received so many acknowledged ones (`owed`)
    wrote          a writer passed bytes to its claim
    refused        a take-over was refused permanently
    listed         an observer received a directory of a machine; `reported`: the sizes reported before
    power_cut      a machine lost its power
    request_received    a server accepted a frame from a session
    append_refused      a server refused an append
    acknowledged_bytes  a server reported that size of an object as synced
    overlooked     a server has not noticed that a folder of its data directory was removed
    served         a server has processed the requests of a session, as far as it can now
    stuck          there was no progress within a time limit
    ended          the run is over: the last take-overs and reads are done
    """

    number = ""

    def object(self, what: str) -> NoReturn:
        raise ViolationError(self.number, what)

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None: ...

    def acknowledged(self, history: "History", directory: str, number: int) -> None: ...

    def returned(self, history: "History", directory: str, found: list[int], owed: int) -> None: ...

    def wrote(self, history: "History", directory: str, name: str, offset: int, data: bytes) -> None: ...

    def refused(self, directory: str, why: str) -> None: ...

    def listed(
        self, machine: "Machine", directory: str, reported: dict[str, int], infos: dict[str, ObjectInfo]
    ) -> None: ...

    def power_cut(self, machine: "Machine") -> None: ...

    def request_received(
        self, machine: "Machine", session: int, directory: str | None, frame: Frame
    ) -> None: ...

    def append_refused(self, machine: "Machine", session: int, request_id: int, code: int) -> None: ...

    def acknowledged_bytes(self, machine: "Machine", directory: str, name: str, synced: int) -> None: ...

    def overlooked(self, machine: "Machine", folder: str) -> None: ...

    def served(self, server: "Server", session: int) -> None: ...

    def stuck(self, what: str) -> None: ...

    def ended(self, cluster: "Cluster") -> None: ...


_EVENTS: Final = tuple(
    name for name in vars(Oracle) if not name.startswith("_") and name not in ("number", "object")
)

_off: Final[dict[str, None]] = {}


@contextmanager
def without(*numbers: str) -> Iterator[None]:
    """Leave out these oracles in runs that begin inside the context."""
    _off.update(dict.fromkeys(numbers))
    try:
        yield
    finally:
        for number in numbers:
            _off.pop(number, None)


class Bench:
    """The oracles of one run. `bench.took_over(...)` calls those that have this method."""

    def __init__(self, kinds: Iterable[type[Oracle]]) -> None:
        self.oracles = [kind() for kind in kinds if kind.number not in _off]
        self._listeners = {
            name: [
                getattr(one, name)
                for one in self.oracles
                if getattr(type(one), name) is not vars(Oracle)[name]
            ]
            for name in _EVENTS
        }

    def __getattr__(self, name: str) -> Callable[..., None]:
        listeners = self._listeners.get(name)
        if listeners is None:
            raise AttributeError(name)

        def report_to_all(*what: Any) -> None:
            for listener in listeners:
                listener(*what)

        report: Callable[..., None] = listeners[0] if len(listeners) == 1 else report_to_all
        setattr(self, name, report)
        return report
