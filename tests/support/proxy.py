"""A TCP proxy before one server that injects network faults on request: the network of the tests with real
servers.

It handles bytes, connections and frames and knows nothing of stores or journals. `proxy_rules` defines the
rules, `proxy_pipes` moves the bytes. A *rule* is one fault, begun by a method of `Proxy` and ended by
`Rule.end`, by leaving its `with` block, or by `Proxy.heal`:

    hold        bytes are taken and kept, and arrive late when the rule ends: a partition
    lose        bytes are read and dropped: a partition that outlives the connection. A stream never
                has a hole: connections that lost bytes are reset when the rule ends
    stall       nothing is taken but one piece: the sender's socket fills up
    slow        so many bytes a second, or so long a wait for each piece
    refuse      new connections are closed at once
    cut         connections end now, by FIN or RST
    cut_after   the connection on which the k-th byte from now passes ends behind that byte
    drop_reply  the server's answer to the n-th request from now of an opcode does not arrive, and the
                connection ends: the server has acknowledged, and the client does not know

A partition holds everything, also the end of a connection: what a client that was killed left open stays
open at the server. Rules go one way or both, and concern all clients or those of one name (from HELLO).
Several rules at once: the strictest counts. A rule is in force when the method returns; only bytes that the
proxy had already handed to the kernel are past it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from dos_protocol.messages import Opcode
from tests.support.proxy_pipes import Connection
from tests.support.proxy_rules import CutAfter, DropReply, Ending, Passage, Refuse, Rule, Way

__all__ = ["CutAfter", "DropReply", "Ending", "Proxy", "Rule", "Way", "proxies"]


class HasAddress(Protocol):
    """A server that a proxy can forward to."""

    @property
    def address(self) -> tuple[str, int]: ...


class Proxy:
    """One proxy. `target` may be changed; it applies from the next connection on. `frames` False: the bytes
    are not frames, so there are no client names and no `drop_reply`.
    """

    def __init__(self, target: tuple[str, int], *, frames: bool = True) -> None:
        self.target = target
        self.frames = frames
        self.port = 0
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.rules: list[Rule] = []

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def location(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self, way: Way = Way.BOTH, *, client: str = "") -> Rule:
        return self._begin(Rule(self.end, way, client, passage=Passage.HOLD))

    def lose(self, way: Way = Way.BOTH, *, client: str = "") -> Rule:
        return self._begin(Rule(self.end, way, client, passage=Passage.LOSE))

    def stall(self, way: Way = Way.BOTH, *, client: str = "") -> Rule:
        return self._begin(Rule(self.end, way, client, passage=Passage.STALL))

    def slow(
        self, way: Way = Way.BOTH, *, bytes_per_s: float = 0.0, delay_s: float = 0.0, client: str = ""
    ) -> Rule:
        return self._begin(Rule(self.end, way, client, bytes_per_s=bytes_per_s, delay_s=delay_s))

    def refuse(self) -> Rule:
        return self._begin(Refuse(self.end, Way.BOTH, ""))

    def cut(self, ending: Ending = Ending.RST, *, client: str = "") -> None:
        for connection in list(self.connections):
            if client in ("", connection.client):
                connection.cut(ending)

    def cut_after(self, count: int, way: Way, *, ending: Ending = Ending.RST, client: str = "") -> CutAfter:
        rule = CutAfter(self.end, way, client)
        rule.left, rule.ending = count, ending
        self._begin(rule)
        return rule

    def drop_reply(
        self, opcode: Opcode, nth: int = 1, *, then_cut: bool = True, client: str = ""
    ) -> DropReply:
        """An APPEND's answer is the watermark that says it is synced. `then_cut` False: the session goes on
        without that one frame, as no TCP would."""
        assert self.frames, "a proxy that does not read frames drops none"
        rule = DropReply(self.end, Way.BOTH, client)
        rule.opcode, rule.left, rule.then_cut = int(opcode), nth, then_cut
        self._begin(rule)
        return rule

    def heal(self) -> None:
        """End all rules."""
        for rule in list(self.rules):
            self.end(rule)

    def end(self, rule: Rule) -> None:
        if rule not in self.rules:
            return
        self.rules.remove(rule)
        for connection in list(self.connections):
            if connection.torn and rule.passage is Passage.LOSE:
                connection.cut(Ending.RST)
        self._wake()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, client: trio.SocketStream) -> None:
        self.accepted += 1
        if any(isinstance(rule, Refuse) for rule in self.rules):
            return
        connection = Connection(self, client)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    def _begin(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        self._wake()
        return rule

    def _wake(self) -> None:
        for connection in self.connections:
            connection.wake()


@asynccontextmanager
async def proxies(servers: Sequence[HasAddress], *, frames: bool = True) -> AsyncIterator[list[Proxy]]:
    """One proxy in front of each server."""
    found = [Proxy(server.address, frames=frames) for server in servers]
    async with trio.open_nursery() as nursery:
        for one in found:
            await nursery.start(one.run)
        yield found
        nursery.cancel_scope.cancel()
