"""One node of `./run bench dadstorm` as a process: it sends over TCP what its state machine returns.

`dadstorm_run.py` starts the nodes and talks to each over one more connection, in lines of JSON:

node -> starter {"node", "port"} it listens starter -> node {"ports": [[node, port]]} connect to the
neighbors node -> starter {"ready": true} it is connected to all of them starter -> node {"do": "start"}
send the input; only to the nodes that have some node -> starter {"offered": N} the source has sent as many
tuples as `Plan.kill_at` states starter -> node {"do": "drain", "dead": [node]} node -> starter {"idle":
true} it has noticed these losses and nothing is to be done starter -> node {"do": "report"} node ->
starter {"delivered": ...} `NodeReport`

The node ends when that connection does.
"""

import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio
from dadstorm_steps import StepWorker, label_of_frame
from dadstorm_tuples import NodeName, TupleDecoder, TupleReplica, encode_tuple, label_of_tuple

from checkpoint.core.links.frames import ChannelFrame, ChannelFrameDecoder, encode
from dataflow.core.regions import Delivery

HOST = "127.0.0.1"
DIVISION_BYTES = 64
"""What a worker appends to its chain for a step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `per_step`: tuples of a step, 0 for tuple by tuple. `window`: how many tuples the source sends
    without a confirmation. `kill_at`: after how many tuples the source reports, 0 for never.
    """

    replicas: int
    delivery: Delivery
    tuples: int
    tuple_bytes: int
    operators: int = 2
    per_step: int = 0
    window: int = 1
    mirror: bool = False
    kill_at: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of replicas of each operator, with source and sink. By step there are workers only."""
        return (0, self.replicas) if self.per_step else (1, *[self.replicas] * self.operators, 1)

    def nodes(self) -> list[NodeName]:
        """Return all nodes, from the source to the sink."""
        sizes = enumerate(self.sizes)
        return [NodeName(operator, replica) for operator, size in sizes for replica in range(size)]

    def has_input(self, node: NodeName) -> bool:
        """Return whether a node reads input: the source, and by step every worker."""
        return node.operator == 0 or self.per_step > 0

    def neighbors(self, node: NodeName) -> list[NodeName]:
        """Return the nodes that a node is connected to."""
        return [one for one in self.nodes() if abs(one.operator - node.operator) <= 1 and one != node]

    def rows(self) -> list[tuple[int, bytes]]:
        """Return the input: the id of each tuple, and its content."""
        return [(ident, b"x" * self.tuple_bytes) for ident in range(self.tuples)]

    def state_machine(self, node: NodeName) -> TupleReplica | StepWorker:
        """Return the state machine of a node."""
        if not self.per_step:
            return TupleReplica(node, self.sizes, self.delivery, mirror=self.mirror)
        rows, share = self.rows(), slice(node.replica, None, self.replicas)
        steps = [rows[first : first + self.per_step][share] for first in range(0, self.tuples, self.per_step)]
        return StepWorker(node, self.replicas, self.operators, self.delivery, steps)


@dataclass(slots=True)
class NodeReport:
    """What a node did. `sent` and `sent_bytes`: by the name of the message. `began`, `ended`: when its input
    began and when the last tuple was delivered here, in seconds of the clock that all processes share.
    """

    delivered: list[int]
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sent_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    began: float | None = None
    ended: float | None = None


class NodeProcess:
    """The connections of one node, and its state machine."""

    def __init__(self, plan: Plan, me: NodeName, control: trio.SocketStream, nursery: trio.Nursery) -> None:
        self._plan, self._me, self._nursery = plan, me, nursery
        self._core = plan.state_machine(me)
        self._report = NodeReport(self._core.delivered)
        self._delivered = 0
        self._outboxes: dict[NodeName, trio.MemorySendChannel[bytes]] = {}
        self._drained: set[NodeName] | None = None
        """The losses to notice before this node is idle; None if the starter does not wait for that."""
        self._kill_at = plan.kill_at if isinstance(self._core, TupleReplica) else 0
        self._to_chain, frames = trio.open_memory_channel[ChannelFrame](math.inf)
        nursery.start_soon(self._append_from, frames)
        self._starter, outbox = trio.open_memory_channel[bytes](math.inf)
        nursery.start_soon(_send_from, outbox, control)

    def tell(self, what: Any) -> None:
        """Send one line to the starter."""
        self._starter.send_nowait(msgspec.json.encode(what) + b"\n")

    async def connect(self, ports: dict[NodeName, int], listener: trio.SocketListener) -> None:
        """Connect to all neighbors: the one with the higher name connects. Raises OSError."""
        for peer in self._plan.neighbors(self._me):  # in order: it connects first, and then waits
            if peer > self._me:
                stream = await listener.accept()
                (code,) = await stream.receive_some(1)
                self._add(NodeName(*divmod(code, 16)), stream)
            else:
                stream = await trio.open_tcp_stream(HOST, ports[peer])
                await stream.send_all(bytes([16 * self._me.operator + self._me.replica]))
                self._add(peer, stream)

    def _add(self, peer: NodeName, stream: trio.SocketStream) -> None:
        self._outboxes[peer], outbox = trio.open_memory_channel[bytes](math.inf)
        self._nursery.start_soon(self._link, peer, stream, outbox)

    async def _link(
        self, peer: NodeName, stream: trio.SocketStream, outbox: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        """Receive and send until the connection ends: then the process of the other end has ended."""
        decoder = ChannelFrameDecoder() if self._plan.per_step else TupleDecoder()
        try:
            async with trio.open_nursery() as both_directions:
                both_directions.start_soon(_send_from, outbox, stream)
                async for data in stream:
                    decoder.receive_data(data)
                    for message in decoder.frames():
                        self._apply(self._core.handle(peer, message))
                both_directions.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass  # the same as the end of the stream: the state machine is notified below
        self._apply(self._core.down(peer))

    async def run(self, commands: AsyncIterator[dict[str, Any]]) -> None:
        """Do what the starter requests, until it closes the connection."""
        async for command in commands:
            if command["do"] == "start":
                self._report.began = time.monotonic()
                core, plan = self._core, self._plan
                by_tuple = isinstance(core, TupleReplica)
                self._apply(core.start(plan.rows(), plan.window) if by_tuple else core.start())
            elif command["do"] == "report":
                self.tell(self._report)
            else:
                self._drained = {NodeName(*name) for name in command["dead"]}
                self._apply([])

    def _apply(self, out: Sequence[tuple[NodeName, Any]]) -> None:
        """Send the messages, and notify the starter of what it waits for."""
        core, report = self._core, self._report
        for to, message in out:
            if to == self._me:
                self._to_chain.send_nowait(message)
                continue
            label = label_of_frame(message) if self._plan.per_step else label_of_tuple(message)
            data = encode(message) if self._plan.per_step else encode_tuple(message)
            report.sent[label] += 1
            report.sent_bytes[label] += len(data)
            self._outboxes[to].send_nowait(data)
        if len(core.delivered) > self._delivered:
            self._delivered, report.ended = len(core.delivered), time.monotonic()
        if self._kill_at and core.offered >= self._kill_at:
            self._kill_at = 0
            self.tell({"offered": core.offered})
        if self._drained is not None and core.idle and core.dead >= self._drained:
            self._drained = None
            self.tell({"idle": True})

    async def _append_from(self, frames: trio.MemoryReceiveChannel[ChannelFrame]) -> None:
        """Append the divisions of steps to the chain, one after the other, and sync each before it counts."""
        with tempfile.TemporaryFile() as chain:
            async for frame in frames:
                await trio.to_thread.run_sync(_append, chain.fileno(), bytes(DIVISION_BYTES))
                self._apply(self._core.handle(self._me, frame))


def _append(chain: int, record: bytes) -> None:
    os.write(chain, record)
    os.fdatasync(chain)


async def _send_from(outbox: trio.MemoryReceiveChannel[bytes], stream: trio.SocketStream) -> None:
    """Send what waits, in one piece."""
    async for data in outbox:
        waiting = [data]
        waiting += [outbox.receive_nowait() for _ in range(outbox.statistics().current_buffer_used)]
        await stream.send_all(b"".join(waiting))


async def _lines(stream: trio.SocketStream) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line)


async def serve(plan: Plan, me: NodeName, control_port: int) -> None:
    """Run a node until its starter closes the connection on `control_port`. Raises OSError."""
    control = await trio.open_tcp_stream(HOST, control_port)
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    async with trio.open_nursery() as nursery:
        node = NodeProcess(plan, me, control, nursery)
        node.tell({"node": me, "port": listener.socket.getsockname()[1]})
        commands = _lines(control)
        ports = {NodeName(*name): port for name, port in (await anext(commands))["ports"]}
        await node.connect(ports, listener)
        node.tell({"ready": True})
        await node.run(commands)
        nursery.cancel_scope.cancel()
