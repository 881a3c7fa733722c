"""What greedy sessions share: unsynced bytes, and reads at the disk."""

from types import SimpleNamespace
from typing import Any

from dos_protocol.limits import MIB
from dos_server.buffers import OutgoingAccount
from dos_server.core import vocabulary as v
from dos_server.core.files.scan import ExtentStart
from dos_server.core.tables import InFlight
from dos_server.limits import (
    in_flight_bytes_max,
    in_flight_share_bytes_min,
    in_flight_shared_bytes_max,
    read_bytes_in_flight_max,
)
from dos_server.server import PacedReads


def test_a_session_that_appends_alone_may_have_more_unsynced_than_its_share_beside_others() -> None:
    # EVIDENCE-OF: P-10
    shares = InFlight()
    assert shares.bytes_max == in_flight_bytes_max
    shares.appended(1, 0.0)
    assert shares.bytes_max == in_flight_bytes_max
    shares.appended(2, 0.1)
    shares.appended(1, 0.5)
    assert shares.bytes_max == in_flight_shared_bytes_max // 2
    shares.appended(1, 1.2)
    assert shares.bytes_max == in_flight_bytes_max, "the other one has been silent for a second"
    for number in range(1_000):
        shares.appended(number, 1.3)
    assert shares.bytes_max == in_flight_share_bytes_min


class Connection:
    outgoing_bytes = reserved_bytes = 0


class Pool:
    """The threads that read: it notes what begins."""

    busy = False

    def __init__(self) -> None:
        self.begun: list[v.ReadData] = []

    def start(self, effect: v.ReadData) -> None:
        self.begun.append(effect)


def read(session: int, start: int) -> v.ReadData:
    return v.ReadData(session, 0, "d", "o", ExtentStart(0, 0, 0), start, start + MIB)


def test_sessions_take_turns_at_the_disk_within_a_budget_of_bytes() -> None:
    # EVIDENCE-OF: P-10
    pool, results = Pool(), list[v.GotData]()
    connections: Any = {number: Connection() for number in range(3)}
    storage: Any = SimpleNamespace(read=None)
    ports: Any = SimpleNamespace(workers=lambda *_: pool)
    rounds: Any = SimpleNamespace(soon=lambda _: None)
    reads = PacedReads(storage, connections, OutgoingAccount(), rounds, results.append, ports)
    for start in range(4):
        reads.submit(read(0, start * MIB))
    for session in (1, 2):
        reads.submit(read(session, 0))
    assert len(pool.begun) == read_bytes_in_flight_max // MIB
    order = []
    while pool.begun:
        done = pool.begun.pop(0)
        order.append(done.session)
        reads._ended(v.GotData(done, b""))
        reads.inspect()
    assert order == [0, 0, 0, 1, 2, 0], "the first two were alone; then each has its turn"
    assert not reads.waiting
