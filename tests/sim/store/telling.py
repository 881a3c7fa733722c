"""The log lines of servers, for those who read a run: the trace, and stories.

It only listens; a server behaves the same without it.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from tests.sim.store.server import Machine, Server


class ServerLog(logging.Handler):
    """Warnings and errors of all servers, each told with the name of the one that runs: `speaker`."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell
        self.speaker = "a server"
        self._logger = logging.getLogger("dos.server")

    def listen_to(self, machine: Machine) -> None:
        """From its next start on."""
        machine.life = lambda machine: TellingServer(machine, self)

    def __enter__(self) -> "ServerLog":
        self._logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(self.speaker, f"logs: {record.getMessage()}")


class TellingServer(Server):
    """A life of the server, which says who it is while it runs."""

    def __init__(self, machine: Machine, log: ServerLog) -> None:
        self._log = log
        log.speaker = machine.name
        super().__init__(machine)

    def do(self, call: Callable[..., None], *args: Any) -> None:
        self._log.speaker = self.name
        super().do(call, *args)

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, scrub_reads.LogNotice) and effect.bad:
            self._log.tell(self.name, f"logs: {effect.text}")
        return super()._perform(effect)
