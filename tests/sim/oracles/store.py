"""The oracles of a store and its journals (O1 to O6, O9 to O12, O14), and what they read of the platters."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dos_protocol.digests import digest64
from dos_protocol.errors import ErrorCode
from dos_protocol.frames import Frame
from dos_protocol.limits import entries_max, payload_bytes_max
from dos_protocol.messages import Append, ObjectInfo, Opcode, decode
from dos_protocol.store_record import StoreRecord, claims_needed
from dos_server.core import vocabulary as v
from dos_server.core.files.extent import HeaderFault, decode_header, object_seed
from dos_server.core.files.scan import VerifyGoal, beginning
from dos_server.core.object_state import ObjectState
from dos_server.limits import (
    connections_max,
    directories_loaded_max,
    extent_header_bytes,
    in_flight_bytes_max,
    index_entries_max,
    log_name_seconds,
    objects_in_use_max,
    open_files_max,
    reads_queued_of_one_max,
    repairs_max,
    requests_in_flight_max,
    waiting_of_one_min,
    waiting_total_max,
)
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from dos_server.core.server_core import ServerCore
    from tests.sim.history import History
    from tests.sim.membership.cluster import MembershipCluster
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


# --- platters ---------------------------------------------------------------------------------------------


def payload_at(data: bytes | None, path: str) -> bytes:
    """Return the content of an object from its file at `d/DIRECTORY/OBJECT`; b'' if there is none."""
    _, directory, name = path.split("/")
    return b"" if data is None else payload_of(data, object_seed(directory, name))


def payload_of(data: bytes, seed: int) -> bytes:
    """Return the content of the undamaged extents at the beginning of a file."""
    return whole_of(data, seed)[0]


def whole_of(data: bytes, seed: int) -> tuple[bytes, int]:
    """Return the content of the undamaged extents at the beginning of a file, and where in the file they
    end."""
    payload, end = bytearray(), 0
    while end + extent_header_bytes <= len(data):
        header = decode_header(data, seed, end)
        if isinstance(header, HeaderFault) or header.offset != len(payload):
            break
        begin = end + extent_header_bytes
        piece = data[begin : begin + header.payload_bytes]
        if len(piece) < header.payload_bytes or digest64(piece) != header.payload_digest:
            break
        payload += piece
        end = begin + header.payload_bytes
    return bytes(payload), end


# --- repaired ---------------------------------------------------------------------------------------------


def check_repaired(cluster: "MembershipCluster") -> None:
    """Check the copies after a repair. Raises ViolationError. The writer fills a copy that is short and
    undamaged; what was reported from a lost disk does not count."""
    for machine in cluster.machines:
        member = cluster.record.member(machine.identity)
        for (directory, name), reported in machine.reported.items() if member is not None else ():
            if directory == LOOSE:
                continue  # on one server only and never claimed: repair ignores it, as specified
            path = f"d/{directory}/{name}"
            data = machine.disk.content(path) or b""
            whole, end = whole_of(data, object_seed(directory, name))
            if len(whole) < reported and end < len(data):
                how = "damage was not found" if path in machine.damaged else "for an unknown reason"
                raise ViolationError(
                    "O12", f"{machine.name} has {len(whole)} of {reported} bytes of {path}: {how}"
                )
        cluster.history.sometimes["damaged copies were repaired"] += machine.copies_repaired


# --- members ----------------------------------------------------------------------------------------------


def check_records(machines: "Iterable[Machine]") -> None:
    """Check that each generation has one record on all servers that ever stored it. Raises ViolationError."""
    known: dict[int, StoreRecord] = {}
    for machine in machines:
        for record in machine.records:
            if known.setdefault(record.generation, record) != record:
                raise ViolationError(
                    "P-4", f"{machine.name} kept another record of generation {record.generation}"
                )


def check_copies(cluster: "MembershipCluster", record: StoreRecord) -> None:
    """Check that acknowledged bytes are on enough members. One member whose disk was lost or is damaged is
    excused. Raises ViolationError."""
    count = len(record.voters)
    if count < len(record.members):
        return  # while a member is filled, few may have a byte; the next record waits for it
    enough = count - claims_needed(count, record.ack_quorum) + 1
    members = [one for one in cluster.machines if record.member(one.identity) is not None]
    hurt = [one for one in members if one in cluster.lost or one is cluster.victim]
    absent = count - len(members)
    for (directory, name), size in cluster.history.durable.items():
        holders = _holders(members, directory, name, size)
        excused = absent + sum(one not in holders for one in hurt)
        if len(holders) + min(excused, 1) < enough:
            names = ", ".join(one.name for one in holders) or "no member"
            raise ViolationError(
                "P-5",
                f"generation {record.generation} counts; {size} bytes of {directory}/{name} are on {names}",
            )


def _holders(members: "Iterable[Machine]", directory: str, name: str, size: int) -> "list[Machine]":
    seed, path = object_seed(directory, name), f"d/{directory}/{name}"
    return [
        one
        for one in members
        if len(payload_of(one.disk.after_start(durable=True).stable(path) or b"", seed)) >= size
    ]


# --- O1 nothing lost --------------------------------------------------------------------------------------


class NothingLost(Oracle):
    """Compares take-overs with what was acknowledged."""

    number = "O1"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        """(There may be newer records too: a process can be stopped between its start and this call.)"""
        line, there = history.line(directory), set(found)
        missing = [one for one in line.acknowledged if one not in there and line.appended[one] < epoch]
        if missing:
            self.object(
                f"epoch {epoch} of {directory} found {len(found)} records, lacks acknowledged {missing[:5]}"
            )

    def power_cut(self, machine: "Machine") -> None:
        """Check all objects except those that the run itself damaged."""
        for (directory, name), reported in machine.reported.items():
            path = f"d/{directory}/{name}"
            if reported and path not in machine.damaged:
                found = len(payload_at(machine.disk.after_start().content(path), path))
                if found < reported:
                    self.object(f"{machine.name} reported {reported} bytes of {path}, and has {found}")


# --- O2 order ---------------------------------------------------------------------------------------------


class Order(Oracle):
    """Checks the order of records in take-overs and reads."""

    number = "O2"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        self._in_order(history, directory, found)

    def returned(self, history: "History", directory: str, found: list[int], owed: int) -> None:
        self._in_order(history, directory, found)

    def _in_order(self, history: "History", directory: str, found: list[int]) -> None:
        line = history.line(directory)
        if len(set(found)) != len(found):
            self.object(f"records of {directory} occur twice")
        keys = [(line.appended.get(number, -1), number) for number in found]
        if keys != sorted(keys) or any(epoch < 0 for epoch, _ in keys):
            self.object(f"records of {directory} are out of order, or were never written")

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            for (directory, name), content in cluster.history.segments.items():
                path = f"d/{directory}/{name}"
                found = payload_at(machine.disk.after_start().content(path), path)
                if not content.startswith(found):
                    self.object(
                        f"{machine.name} has {len(found)} bytes of {path} that differ from what was written"
                    )


# --- O3 reads ---------------------------------------------------------------------------------------------


class ReadsStay(Oracle):
    """Compares take-overs and reads with what readers got before."""

    number = "O3"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        line = history.line(directory)
        returned = [number for number in line.returned if line.appended.get(number, 0) < epoch]
        if found[: len(returned)] != returned:
            self.object(f"epoch {epoch} of {directory} lacks records that a reader received")

    def returned(self, history: "History", directory: str, found: list[int], owed: int) -> None:
        returned = history.line(directory).returned
        common = min(len(found), len(returned))
        if found[:common] != returned[:common]:
            self.object(f"two readers of {directory} received different histories")
        there = set(found)
        if missing := [one for one in history.line(directory).acknowledged[:owed] if one not in there]:
            self.object(f"a reader of {directory} was not told that it lacks acknowledged {missing[:5]}")


# --- O4 one writer ----------------------------------------------------------------------------------------


class OneWriter(Oracle):
    """Remembers the result of the newest take-over of each directory."""

    number = "O4"

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, frozenset[int]]] = {}

    def wrote(self, history: "History", directory: str, name: str, offset: int, data: bytes) -> None:
        size = len(history.segments[directory, name]) - len(data)
        if size != offset:
            self.object(f"{directory}/{name} is written at {offset}, it has {size} bytes")

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        if epoch > self._newest.get(directory, (0, frozenset()))[0]:
            self._newest[directory] = epoch, frozenset(found)

    def acknowledged(self, history: "History", directory: str, number: int) -> None:
        epoch, found = self._newest.get(directory, (0, frozenset()))
        mine = history.line(directory).appended[number]
        if mine < epoch and number not in found:
            self.object(f"epoch {mine} of {directory} received an ack of {number}, epoch {epoch} lacks it")


# --- O5 listed --------------------------------------------------------------------------------------------


class Listed(Oracle):
    """Compares LIST and STAT with what was acknowledged. O12 checks damaged objects."""

    number = "O5"

    def listed(
        self, machine: "Machine", directory: str, reported: dict[str, int], infos: dict[str, ObjectInfo]
    ) -> None:
        for name, size in reported.items():
            path = f"d/{directory}/{name}"
            if not size or path in machine.damaged:
                continue
            info = infos.get(name)
            if info is None:
                self.object(f"{machine.name} reported {size} bytes of {path} and does not list it")
            elif info.synced < size and not info.corrupt:
                self.object(f"{machine.name} reported {size} bytes of {path} and lists {info.synced}")
        for name, info in infos.items():
            path = f"d/{directory}/{name}"
            if path not in machine.damaged and (directory, name) not in machine.reportable_max:
                durable = len(payload_at(machine.disk.after_start(durable=True).stable(path), path))
                if info.synced > durable:
                    self.object(f"{machine.name} lists {info.synced} bytes of {path}, {durable} are durable")


# --- O6 refused -------------------------------------------------------------------------------------------


class Refused(Oracle):
    """Checks the refusals of take-overs."""

    number = "O6"

    def refused(self, directory: str, why: str) -> None:
        self.object(f"a take-over of {directory} was refused: {why}")


# --- O9 no effect -----------------------------------------------------------------------------------------


_APPEND: Final = int(Opcode.APPEND)
_REPAIR: Final = int(Opcode.REPAIR)
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
            if frame.opcode == _REPAIR:
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


# --- O10 caps ---------------------------------------------------------------------------------------------


_FILES_BESIDE: int = 64
"""Allowed in addition, for the marks of directories and files in use."""


class Caps(Oracle):
    """Checks the limits of a session whenever its server served it, the others when a machine loses its power
    and at the end.
    """

    number = "O10"

    def served(self, server: "Server", session: int) -> None:
        one = server.core._tables.sessions.get(session)
        if one is None:
            return
        if (
            one.reading > reads_queued_of_one_max
            or one.pending > requests_in_flight_max
            or one.unsynced_bytes > in_flight_bytes_max + payload_bytes_max
        ):
            owner_of = f"of session {session} of {server.machine.name}"
            self._under(one.reading, reads_queued_of_one_max, f"reads {owner_of}")
            self._under(one.pending, requests_in_flight_max, f"requests {owner_of}")
            self._under(one.unsynced_bytes, in_flight_bytes_max + payload_bytes_max, f"bytes {owner_of}")

    def power_cut(self, machine: "Machine") -> None:
        self._check_limits(machine)

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            self._check_limits(machine)

    def _check_limits(self, machine: "Machine") -> None:
        server = machine.server
        if server is None:
            return
        tables, name = server.core._tables, machine.name
        self._under(len(tables.sessions), connections_max, f"sessions of {name}")
        self._under(len(tables.directories), directories_loaded_max, f"directories of {name}")
        self._under(len(tables.repairs), repairs_max, f"new copies of {name}")
        self._under(len(machine.disk._handles), open_files_max + _FILES_BESIDE, f"files of {name}")
        self._under(tables.objects, objects_in_use_max + entries_max, f"objects of {name}")
        waiting_max = waiting_total_max + waiting_of_one_min * len(tables.sessions)
        self._under(len(tables.waiting), waiting_max, f"GETs that wait on {name}")
        counted = sum(len(directory.opening) for directory in tables.directories.values())
        self._under(tables.openings, counted, f"counted openings of {name}")
        for directory in tables.directories.values():
            for state in directory.objects.values():
                self._under(len(state.index), index_entries_max, f"entries of the index of {state.name}")

    def _under(self, number: int, cap: int, what: str) -> None:
        if number > cap:
            self.object(f"{number} {what}, {cap} are allowed")


# --- O11 progress -----------------------------------------------------------------------------------------


class Progress(Oracle):
    """Checks that work continues after the heal."""

    number = "O11"

    def stuck(self, what: str) -> None:
        self.object(what)


# --- O12 damage -------------------------------------------------------------------------------------------


class Damage(Oracle):
    """Compares reported damage with the damage that was done. A server reports nothing about directories that
    it has not loaded.
    """

    number = "O12"

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            if machine.server is not None and machine.server.alive:
                self._judge(machine, machine.server)

    def _judge(self, machine: "Machine", server: "Server") -> None:
        for name, directory in server.core._tables.directories.items():
            if directory.problem or not directory.exists:
                continue
            objects = {
                key: reported
                for (folder, key), reported in machine.reported.items()
                if folder == name and reported
            }
            for key, reported in objects.items():
                path, state = f"d/{name}/{key}", directory.objects.get(key)
                if not machine.damaged.get(path, True):
                    continue
                lost = path in machine.damaged and self._lacks(machine, path, reported)
                if state is None or not self._reports(server, state):
                    if lost:
                        self.object(
                            f"{machine.name} lost bytes of {path}, had reported {reported}: no report"
                        )
                    if state is None or state.synced < reported:
                        has = "none" if state is None else state.synced
                        self.object(
                            f"{machine.name} reported {reported} bytes of {path}, has {has}: no report"
                        )
            for key, state in directory.objects.items():
                damaged = f"d/{name}/{key}" in machine.damaged or machine.had_errors
                if state.corrupt_from is not None and not damaged:
                    self.object(f"{machine.name} reports that {name}/{key} is damaged, and it is not")

    @staticmethod
    def _lacks(machine: "Machine", path: str, reported: int) -> bool:
        return (
            not machine.disk.is_unreadable(path)
            and len(payload_at(machine.disk.after_start(durable=True).stable(path), path)) < reported
        )

    @staticmethod
    def _reports(server: "Server", state: ObjectState) -> bool:
        """Return whether the object is reported as damaged. Without a scrub, the whole object is read now."""
        if state.damaged or server.machine.scrub.bytes_per_s:
            return state.damaged
        chain, goal = beginning(state.root), VerifyGoal(state.synced, state.synced_digest)
        while chain.offset < goal.size:
            part = server.storage.scrub_read(
                v.ScrubRead(state.directory, state.name, chain, goal), lambda: 0.0
            )
            if part.chain is None:
                return part.damaged_at is not None
            chain = part.chain
        return False


# --- O14 causes -------------------------------------------------------------------------------------------


_NO_SPACE: Final = int(ErrorCode.NO_SPACE)


class Causes(Oracle):
    """Checks what servers report about causes."""

    number = "O14"

    def append_refused(self, machine: "Machine", session: int, request_id: int, code: int) -> None:
        if code == _NO_SPACE and not machine.disk.was_full:
            self.object(f"{machine.name} refuses an append for lack of space, and its disk was never full")

    def acknowledged_bytes(self, machine: "Machine", directory: str, name: str, synced: int) -> None:
        most = machine.reportable_max.get((directory, name), synced)
        if synced > most and not _may_be_unnoticed(machine, directory, name):
            self.object(
                f"{machine.name} acknowledges {synced} bytes of {directory}/{name}, removed at {most}"
            )

    def overlooked(self, machine: "Machine", folder: str) -> None:
        self.object(f"{machine.name} continues to serve, though its folder {folder} was removed")

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            server = machine.server
            if server is not None and server.alive and not (machine.had_errors or machine.damaged):
                for what in permanent_refusals(server.core):
                    self.object(f"{machine.name}: {what}, and only transient causes can explain it")


def _may_be_unnoticed(machine: "Machine", directory: str, name: str) -> bool:
    """Return whether the group log has not checked the name since the removal: it does so at intervals."""
    server = machine.server
    if server is None or server.core._tables.log is None:
        return False
    state = server.core._tables.find(directory, name)
    return state is not None and state.named_until < machine.taken_away_at + log_name_seconds


def permanent_refusals(core: "ServerCore") -> list[str]:
    """Return what a server refuses permanently: directories and objects."""
    found = []
    for name, directory in core._tables.directories.items():
        if directory.problem:
            found.append(f"directory {name} is refused ({directory.problem})")
        found += [
            f"object {name}/{key} is refused"
            for key, state in directory.objects.items()
            if state.damaged or state.corrupt_from is not None
        ]
    return found
