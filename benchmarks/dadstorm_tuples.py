"""The delivery of single tuples of the DADSTORM paper (its section 5): one state machine for each replica.

Pure: `TupleReplica` receives messages and losses of other nodes, and returns the messages to send. Nodes
are the replicas of the operators 1 to O, a source (operator 0) and a sink (operator O + 1), which are one
node each. A tuple passes through every operator, at the replica with index id mod R.

What a replica does with a tuple (numbers of the paper's section 5.3), and the message of each step:

(1) receives it TUPLE (3) keeps it in its delivery table (4) keeps a record of it: its id, and where it is
from (5) sends the record to its colleagues, the other replicas RECORD (2) confirms the tuple to its sender
CONFIRM (6) processes it, and sends it to the next operator TUPLE (7, 8) when that confirms: marks the
record as purged at its colleagues too, and the sender deletes the tuple PURGE, DELETE

RECORD, PURGE and DELETE are confirmed like TUPLE, because they are synchronous calls in the paper. A node
is lost only as a whole; the next one in the ring of its operator represents it then. It requests the
tuples of the lost node's pending records from where they are from (FETCH) and processes them as new ones.
GONE answers a FETCH of a deleted tuple: the next operator has it.

The paper confirms (2) before it shares the record (5). A replica that is lost between the two loses the
tuple: its sender will not send it again, and no colleague knows it. `confirm_first` is that order.

At-most-once has none of these tables: TUPLE and CONFIRM only, and what a lost node had is lost. Exactly-
once drops a tuple whose id has a record; at-least-once does not. As in the paper, purged records are kept
for ever, and tuples may be lost if two nodes fail, of which one had the only copy of the other's tuples.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple

from dataflow.core.regions import Delivery

_HEAD: Final = struct.Struct(">IBBHQ")
"""Payload bytes 4, kind 1, confirmed kind 1, origin 2, id 8: 16 bytes, the size of a record in the paper."""
HEAD_BYTES: Final = _HEAD.size


class NodeName(NamedTuple):
    """A replica: the number of its operator, and its index in the operator."""

    operator: int
    replica: int


class TupleKind(IntEnum):
    """The kind of a message."""

    TUPLE = 1
    RECORD = 2
    PURGE = 3
    DELETE = 4
    FETCH = 5
    GONE = 6
    CONFIRM = 7


class TupleMessage(NamedTuple):
    """One message about one tuple. `origin`: of RECORD, the replica of the operator above that the tuple is
    from. `confirmed`: of CONFIRM, the kind of the message that it confirms, otherwise 0.
    """

    kind: TupleKind
    id: int
    origin: int = 0
    confirmed: int = 0
    payload: bytes = b""


TupleOutput = list[tuple[NodeName, TupleMessage]]


class TupleDecoder:
    """An incremental decoder: takes bytes in any pieces, returns whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take the next bytes of the connection."""
        self._buffer += data

    def frames(self) -> Iterator[TupleMessage]:
        """Yield the whole messages received so far. Raises ValueError for an unknown kind."""
        start = 0
        while len(self._buffer) >= start + HEAD_BYTES:
            size, kind, confirmed, origin, ident = _HEAD.unpack_from(self._buffer, start)
            end = start + HEAD_BYTES + size
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[start + HEAD_BYTES : end])
            yield TupleMessage(TupleKind(kind), ident, origin, confirmed, payload)
            start = end
        del self._buffer[:start]


def encode_tuple(message: TupleMessage) -> bytes:
    """Return the bytes of a message."""
    kind, ident, origin, confirmed, payload = message
    return _HEAD.pack(len(payload), kind, confirmed, origin, ident) + payload


def label_of_tuple(message: TupleMessage) -> str:
    """Return the name under which a message is counted."""
    name = message.kind.name
    return f"{name} of {TupleKind(message.confirmed).name}" if message.confirmed else name


class Stage(Enum):
    """What a replica waits for before it continues with a tuple."""

    RECORDING = auto()
    """Its colleagues confirm the record."""
    FORWARDING = auto()
    """The next operator confirms the tuple."""
    PURGING = auto()
    """Its colleagues and the node that the tuple is from confirm PURGE and DELETE."""
    HELD = auto()
    """The next operator sends DELETE."""


_CONFIRMED_IN: Final = {
    TupleKind.RECORD: Stage.RECORDING,
    TupleKind.TUPLE: Stage.FORWARDING,
    TupleKind.PURGE: Stage.PURGING,
    TupleKind.DELETE: Stage.PURGING,
}


@dataclass(slots=True)
class HeldTuple:
    """An entry of the delivery table. `confirm_to`: who receives CONFIRM after the stage RECORDING.
    `deleted`: whether the tuple need not be kept after the stage PURGING.
    """

    payload: bytes
    confirm_to: list[NodeName]
    stage: Stage = Stage.RECORDING
    awaiting: set[NodeName] = field(default_factory=set)
    deleted: bool = False


@dataclass(slots=True)
class SharedRecord:
    """A tuple record. `owner`: the replica that processes the tuple; `origin`: the replica of the operator
    above that it is from; `purged`: whether the next operator has it.
    """

    owner: int
    origin: int
    purged: bool = False


class TupleReplica:
    """One replica of one operator, the source, or the sink.

    `replicas`: the number of replicas of each operator, including the source and the sink, which have one.
    `mirror`: records contain the whole tuple, to compare the bytes with those of the paper's section 2.2.
    """

    def __init__(
        self,
        me: NodeName,
        replicas: tuple[int, ...],
        delivery: Delivery,
        *,
        mirror: bool = False,
        confirm_first: bool = False,
    ) -> None:
        self.me = me
        self.delivered: list[int] = []
        """The ids of the tuples that the sink received, in order."""
        self.offered = 0
        """How many tuples the source has sent."""
        self.dead: set[NodeName] = set()
        self._replicas = replicas
        self._resends = delivery != "at-most-once"
        self._drops_known = delivery == "exactly-once"
        self._mirror = mirror
        self._confirm_first = confirm_first
        self._held: dict[int, HeldTuple] = {}
        self._records: dict[int, SharedRecord] = {}
        self._fetched: set[int] = set()
        """Ids that were requested with FETCH and have not come."""
        self._input: Iterator[tuple[int, bytes]] = iter(())
        self._window = 0
        self._out: TupleOutput = []

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done: no tuple is held or was requested."""
        return not self._held and not self._fetched

    def start(self, tuples: Iterable[tuple[int, bytes]], window: int) -> TupleOutput:
        """Make the source send (id, payload), with at most `window` tuples that are not confirmed."""
        self._input, self._window = iter(tuples), window
        return self._finish()

    def handle(self, sender: NodeName, message: TupleMessage) -> TupleOutput:
        """Return the messages to send after one from `sender`. Messages of one sender come in order."""
        kind, ident = message.kind, message.id
        if kind is TupleKind.CONFIRM:
            self._on_confirm(sender, message)
        elif kind is TupleKind.TUPLE:
            self._on_tuple(sender, message)
        elif kind is TupleKind.FETCH:
            held = self._held.get(ident)
            answer = TupleMessage(TupleKind.TUPLE, ident, payload=held.payload) if held else None
            self._send(sender, answer or TupleMessage(TupleKind.GONE, ident))
        elif kind is TupleKind.GONE:
            self._fetched.discard(ident)
            self._records[ident].purged = True
        else:
            if kind is TupleKind.RECORD:
                self._on_record(sender, message)
            elif kind is TupleKind.PURGE:
                self._records[ident].purged = True
            else:
                self._on_delete(ident)
            self._send(sender, TupleMessage(TupleKind.CONFIRM, ident, confirmed=kind))
        return self._finish()

    def down(self, node: NodeName) -> TupleOutput:
        """Return the messages to send after a node was lost. No message of it comes after this call."""
        self.dead.add(node)
        for ident, held in list(self._held.items()):
            if node in held.awaiting:
                held.awaiting.discard(node)
                if held.stage is not Stage.FORWARDING:
                    if node.operator < self.me.operator:
                        self._delete_at_origin(ident, held)
                    self._continue(ident, held)
                elif self._resends:
                    self._forward(ident, held)
                else:
                    del self._held[ident]
        if self._resends and node.operator == self.me.operator:
            self._take_over()
        return self._finish()

    def _finish(self) -> TupleOutput:
        """Send tuples of the source as the window allows, and return all messages."""
        while self._window > sum(held.stage is Stage.FORWARDING for held in self._held.values()):
            following = next(self._input, None)
            if following is None:
                self._window = 0
                break
            self.offered += 1
            self._accept(following[0], following[1], None)
        out, self._out = self._out, []
        return out

    def _send(self, to: NodeName, message: TupleMessage) -> None:
        if to not in self.dead:
            self._out.append((to, message))

    def _representative(self, operator: int, replica: int) -> NodeName:
        """Return the node that does the work of an index: the first one in the ring that is not lost."""
        count = self._replicas[operator]
        ring = (NodeName(operator, (replica + step) % count) for step in range(count))
        return next(node for node in ring if node not in self.dead)

    def _colleagues(self) -> set[NodeName]:
        operator, replica = self.me
        others = {NodeName(operator, index) for index in range(self._replicas[operator]) if index != replica}
        return others - self.dead

    def _on_tuple(self, sender: NodeName, message: TupleMessage) -> None:
        ident = message.id
        record = self._records.get(ident)
        if record is None or ident in self._fetched or not self._drops_known:
            self._accept(ident, message.payload, sender)
            return
        held = self._held.get(ident)
        if held is not None and held.stage is Stage.RECORDING:
            held.confirm_to.append(sender)
            return
        self._send(sender, TupleMessage(TupleKind.CONFIRM, ident, confirmed=TupleKind.TUPLE))
        if record.purged:  # the sender took a lost node's place, and DELETE went to that node
            self._send(sender, TupleMessage(TupleKind.DELETE, ident))

    def _accept(self, ident: int, payload: bytes, sender: NodeName | None) -> None:
        """Begin with a tuple; with one that is held already, again. `sender` is None at the source."""
        confirm_to = self._held[ident].confirm_to if ident in self._held else []
        confirm_to += [] if sender is None else [sender]
        held = self._held[ident] = HeldTuple(payload, confirm_to, deleted=not self._resends)
        self._fetched.discard(ident)
        if self._confirm_first:
            self._confirm(ident, held)
        if self._resends and sender is not None:
            self._records[ident] = SharedRecord(self.me.replica, sender.replica)
            held.awaiting = self._colleagues()
            shared = payload if self._mirror else b""
            for colleague in held.awaiting:
                self._send(colleague, TupleMessage(TupleKind.RECORD, ident, sender.replica, payload=shared))
        self._continue(ident, held)

    def _continue(self, ident: int, held: HeldTuple) -> None:
        """Do what follows, until something has to be confirmed."""
        while not held.awaiting and held.stage is not Stage.HELD:
            if held.stage is Stage.RECORDING:
                self._confirm(ident, held)
                held.stage = Stage.FORWARDING
                self._forward(ident, held)
            elif held.stage is Stage.FORWARDING:
                held.stage = Stage.PURGING
                self._purge(ident, held)
            else:
                held.stage = Stage.HELD
                if held.deleted:
                    del self._held[ident]

    def _confirm(self, ident: int, held: HeldTuple) -> None:
        for sender in held.confirm_to:
            self._send(sender, TupleMessage(TupleKind.CONFIRM, ident, confirmed=TupleKind.TUPLE))
        held.confirm_to = []

    def _forward(self, ident: int, held: HeldTuple) -> None:
        following = self.me.operator + 1
        if following == len(self._replicas):
            self.delivered.append(ident)
            held.deleted = True
            return
        target = self._representative(following, ident % self._replicas[following])
        held.awaiting = {target}
        self._send(target, TupleMessage(TupleKind.TUPLE, ident, payload=held.payload))

    def _purge(self, ident: int, held: HeldTuple) -> None:
        record = self._records.get(ident)
        if record is None:  # at the source, or at-most-once
            return
        record.purged = True
        held.awaiting = self._colleagues()
        for colleague in held.awaiting:
            self._send(colleague, TupleMessage(TupleKind.PURGE, ident))
        self._delete_at_origin(ident, held)

    def _delete_at_origin(self, ident: int, held: HeldTuple) -> None:
        origin = self._representative(self.me.operator - 1, self._records[ident].origin)
        held.awaiting.add(origin)
        self._send(origin, TupleMessage(TupleKind.DELETE, ident))

    def _on_confirm(self, sender: NodeName, message: TupleMessage) -> None:
        held = self._held.get(message.id)
        if held is not None and held.stage is _CONFIRMED_IN[TupleKind(message.confirmed)]:
            held.awaiting.discard(sender)
            self._continue(message.id, held)

    def _on_record(self, sender: NodeName, message: TupleMessage) -> None:
        known = self._records.get(message.id)
        if known is None or not (known.purged or known.owner == self.me.replica):
            # a record of our own is newer: its sender was lost, and the tuple was sent to us instead
            self._records[message.id] = SharedRecord(sender.replica, message.origin)

    def _on_delete(self, ident: int) -> None:
        held = self._held.get(ident)
        if held is not None:
            held.deleted = True
            if held.stage is Stage.HELD:
                del self._held[ident]

    def _take_over(self) -> None:
        """Request the tuples of pending records of lost nodes that this node represents. A tuple whose record
        is purged may still be held where it is from: DELETE may be lost with the node.
        """
        operator = self.me.operator
        for ident, record in self._records.items():
            if NodeName(operator, record.owner) not in self.dead:
                continue
            if self._representative(operator, record.owner) == self.me:
                if not record.purged:
                    self._fetched.add(ident)
                kind = TupleKind.DELETE if record.purged else TupleKind.FETCH
                self._send(self._representative(operator - 1, record.origin), TupleMessage(kind, ident))
