"""Connections between processes, like those of TCP: ordered, independent in each direction; delayed, cut or
blocked.

It does not parse messages. A one-way block delays what is sent in that direction while it lasts. Data is lost
only by the end of a connection, and then only at the end of the stream. Each message has a length: thin links
carry a bounded number of bytes per second.

A connection ends in one of four ways:

- a process closes it: the other end receives what was sent before, then the end;
- a reset: some of the data in flight in each direction is lost, and both ends are notified;
- the process at one end ends: a reset, of which that end is not notified;
- the machine loses its power: neither end is notified until the machine is up again.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from tests.sim.engine.environment import Environment, Process


class End(Protocol):
    """The interface of one end of a connection."""

    def received(self, item: Any) -> None:
        """An item arrived."""

    def ended(self) -> None:
        """The connection is over."""


class _Way:
    """One direction of one connection."""

    __slots__ = ("blocked_pumps", "end", "going", "last", "path", "process", "stalled")

    def __init__(self, path: tuple[str, str], process: Process) -> None:
        self.path = path
        self.process = process
        self.end: End | None = None
        self.going: deque[Any] = deque()
        self.blocked_pumps = 0
        self.last = 0.0
        self.stalled = False


_THE_END = object()


class Wire:
    """One connection. `a` dialed, `b` accepted."""

    def __init__(self, network: "Network", a: Process, b: Process, b_address: str) -> None:
        self._network = network
        self.processes = (a, b)
        self.address = b_address
        self.open = True
        self.muted = False
        self._ways = (_Way((a.name, b.name), b), _Way((b.name, a.name), a))

    def attach(self, end: End, *, dialler: bool) -> None:
        """Set the receiver of this end."""
        self._ways[1 if dialler else 0].end = end

    def send(self, item: Any, *, dialler: bool) -> None:
        """Send to the other end."""
        if self.open and not self.muted:
            self._put(self._ways[0 if dialler else 1], item)

    def close(self, *, dialler: bool) -> None:
        """Close this end. The other one receives what was sent before, then the end."""
        if self.open and not self.muted:
            self._put(self._ways[0 if dialler else 1], _THE_END)
        self._forget()

    def reset(self) -> None:
        """End the connection for both ends; some of the data in flight in each direction is lost."""
        if not self.open:
            return
        for way in self._ways:
            keep = self._network.rng.randint(0, len(way.going))
            lost = len(way.going) - keep
            for _ in range(lost):
                way.going.pop()
            way.going.append(_THE_END)
            if lost == 0:
                self._network.pump_later(self, way)
        self._forget()

    def haunt(self, seconds: float) -> None:
        """Make it a zombie connection: the dialing end is notified of the end and may dial again, but what it
        had sent arrives `seconds` later."""
        if not self.open or self.muted:
            return
        there, back = self._ways
        there.stalled = True
        self._put(there, _THE_END)
        self._put(back, _THE_END)
        self._forget()

        def deliver() -> None:
            there.stalled = False
            pumps, there.blocked_pumps = there.blocked_pumps, 0
            for _ in range(pumps):
                self._network.pump_later(self, there)

        self._network.env.after(seconds, deliver)

    def mute(self) -> None:
        """A machine lost its power: nothing more arrives in either direction, without notice."""
        self.muted = True
        for way in self._ways:
            way.going.clear()

    def _forget(self) -> None:
        self.open = False
        self._network.wires.pop(self, None)

    def _put(self, way: _Way, item: Any) -> None:
        way.going.append(item)
        self._network.pump_later(self, way, self._network.line_s(way.path, item))

    def pump(self, way: _Way) -> None:
        """Deliver the next item of that direction, unless it is blocked."""
        if way.stalled:
            way.blocked_pumps += 1
        elif way.path in self._network.blocked:
            way.blocked_pumps += 1
            self._network.hold(self, way)
        elif way.going:
            item = way.going.popleft()
            way.process.do(self._arrived, way, item)

    @staticmethod
    def _arrived(way: _Way, item: Any) -> None:
        if way.end is None:
            return
        if item is _THE_END:
            way.end.ended()
        else:
            way.end.received(item)


class Network:
    """All connections, and the faults of the paths between processes. `blocked`: paths that deliver nothing;
    `slow`: factor of the latency, `thin`: bytes per second, by path."""

    def __init__(self, env: Environment, rng: Random, latency_s: Callable[[str, str], float]) -> None:
        self.env = env
        self.rng = rng
        self.wires: dict[Wire, None] = {}
        self.slow: dict[tuple[str, str], float] = {}
        self.thin: dict[tuple[str, str], float] = {}
        self.latency_s = latency_s
        self._bases: dict[tuple[str, str], float] = {}
        self._listening: dict[str, tuple[Process, Callable[[Wire], End]]] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        self._barred: dict[tuple[str, str], None] = {}
        self._held: dict[tuple[str, str], list[tuple[Wire, _Way]]] = {}

    def listen(self, address: str, process: Process, accept: Callable[[Wire], End]) -> None:
        """Let connections to the address reach this process."""
        self._listening[address] = (process, accept)

    def dial(self, client: Process, address: str, done: Callable[[Wire | None], None]) -> None:
        """Connect; `done` receives the connection, or None if it was refused. `done` is never called if the
        path is blocked or the machine has no power: the caller sets a time-out."""
        process, _ = self._listening[address]
        there, back = (client.name, process.name), (process.name, client.name)

        def arrive() -> None:
            if there in self.blocked or back in self.blocked:
                return
            current, accept_now = self._listening[address]
            if there in self._barred:
                client.after(self.delay_s(back), lambda: done(None))
                return
            if not current.alive:
                if not getattr(current, "without_power", False):
                    client.after(self.delay_s(back), done, None)
                return
            wire = Wire(self, client, current, address)
            self.wires[wire] = None
            wire.attach(accept_now(wire), dialler=False)
            client.after(self.delay_s(back), done, wire)

        self.env.after(self.delay_s(there), arrive)

    def delay_s(self, path: tuple[str, str]) -> float:
        """Draw the latency of one message on that path."""
        base = self._bases.get(path)
        if base is None:
            base = self._bases[path] = self.latency_s(*path)
        if path in self.slow:
            base *= self.slow[path]
        return base * (0.5 + self.rng.random())

    def line_s(self, path: tuple[str, str], item: Any) -> float:
        """Return how long a message occupies a thin path."""
        if path not in self.thin or item is _THE_END:
            return 0.0
        count = len(item) if isinstance(item, bytes) else len(item.meta) + len(item.payload)
        return count / self.thin[path]

    def pump_later(self, wire: Wire, way: _Way, line_s: float = 0.0) -> None:
        now = self.env.now
        way.last = max(way.last, now + self.delay_s(way.path)) + line_s
        self.env.after(way.last - now, wire.pump, way)

    # Faults

    def block(self, path: tuple[str, str]) -> None:
        """Stop delivery in that direction; data is kept."""
        self.blocked[path] = None

    def unblock(self, path: tuple[str, str]) -> None:
        """Continue delivery in that direction, in order."""
        self.blocked.pop(path, None)
        held = self._held.pop(path, [])
        for wire, way in held:
            pumps, way.blocked_pumps = way.blocked_pumps, 0
            for _ in range(pumps):
                self.pump_later(wire, way)

    def bar(self, client: str, machine: str) -> None:
        """Reset that client's connections to the machine, and refuse new ones."""
        self._barred[client, machine] = None
        for wire in [one for one in self.wires if [end.name for end in one.processes] == [client, machine]]:
            wire.reset()

    def unbar(self, client: str, machine: str) -> None:
        self._barred.pop((client, machine), None)

    def quicken(self, path: tuple[str, str]) -> None:
        """End the slowness and thinness of that path."""
        self.slow.pop(path, None)
        self.thin.pop(path, None)

    def hold(self, wire: Wire, way: _Way) -> None:
        held = self._held.setdefault(way.path, [])
        if (wire, way) not in held:
            held.append((wire, way))

    def heal(self) -> None:
        """End the faults of all paths."""
        self.slow.clear()
        self.thin.clear()
        self._barred.clear()
        for path in list(self.blocked):
            self.unblock(path)

    def process_died(self, process: Process, *, power: bool) -> None:
        """Reset its connections, as its kernel does; or, without power, silence them."""
        for wire in list(self.wires):
            if process in wire.processes:
                if power:
                    wire.mute()
                else:
                    wire.reset()

    def power_back(self, address: str) -> None:
        """Reset the connections of a machine that is up again to its previous incarnation."""
        for wire in [one for one in self.wires if one.muted and one.address == address]:
            wire.muted = False
            wire.reset()
