"""A client of the original service: it uses version 0, on the server's own machine.

Its requests are events of the server's core, its answers frames. It knows no store and no claim.
"""

from collections.abc import Callable

from dos_server.core import vocabulary as v
from tests.sim.store.machine import Machine
from tests.sim.store.server_log import LoggedServer, ServerLog
from tests.stories.words import WrongStepError

NAME = "the old client"


class OldClient:
    """One connection. `heard`: bytes that came and were not told yet; `over`: the server has ended it."""

    def __init__(self, server: "StoryServer", tell: Callable[[str], None]) -> None:
        self.server = server
        self.heard = bytearray()
        self.over = False
        self._tell = tell
        server.machine.last_session += 1
        self.session = server.machine.last_session
        server.old_clients[self.session] = self
        server.do(server.feed, v.Connected(self.session))

    def ask(self, words: str) -> None:
        """`a log 0` is the command a with two arguments."""
        command, *arguments = words.split()
        body = command + "\t".join(arguments)
        self._do(v.Requested(self.session, body.encode()))

    def stream(self, data: str) -> None:
        self._do(v.Streamed(self.session, data.encode()))

    def shut_down(self) -> None:
        """It sends no more, and listens."""
        self._do(v.HalfClosed(self.session))

    def tell(self) -> None:
        """What came since."""
        while len(self.heard) >= 4:
            count = int.from_bytes(self.heard[:4], "big")
            body = bytes(self.heard[4 : 4 + count]).decode()
            del self.heard[: 4 + count]
            self._tell(f"{NAME} receives '{body.rstrip().expandtabs(1)}'")
        if self.over and not self.heard:
            self._tell(f"the server ends the connection of {NAME}")
            self.over = False

    def _do(self, event: v.Event) -> None:
        if self.session not in self.server.old_clients or not self.server.alive:
            raise WrongStepError(f"{NAME} has no connection")
        self.server.do(self.server.feed, event)


class StoryServer(LoggedServer):
    """A server that old clients may speak to."""

    def __init__(self, machine: Machine, log: ServerLog) -> None:
        self.old_clients: dict[int, OldClient] = {}
        super().__init__(machine, log)

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, v.SendBytes) and effect.session in self.old_clients:
            self.old_clients[effect.session].heard += effect.data
        elif isinstance(effect, v.CloseSession) and effect.session in self.old_clients:
            self.old_clients.pop(effect.session).over = True
        return super()._perform(effect)
