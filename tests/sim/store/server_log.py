"""The log lines of servers, for the trace and for stories. A server behaves the same without it."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dos_server.core import vocabulary as v
from tests.sim.store.machine import Machine
from tests.sim.store.server import Server


class ServerLog(logging.Handler):
    """Reports warnings and errors of all servers, each with the name of the server that runs: `current`."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self.report = report
        self.current = "a server"
        self._logger = logging.getLogger("dos.server")

    def listen_to(self, machine: Machine) -> None:
        """Report the log lines of that machine from its next start on."""
        machine.server_class = lambda machine: LoggedServer(machine, self)

    def __enter__(self) -> "ServerLog":
        self._logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.report(self.current, f"logs: {record.getMessage()}")


class LoggedServer(Server):
    """A server process that sets its name in the log while it runs."""

    def __init__(self, machine: Machine, log: ServerLog) -> None:
        self._log = log
        log.current = machine.name
        super().__init__(machine)

    def do(self, call: Callable[..., None], *args: Any) -> None:
        self._log.current = self.name
        super().do(call, *args)

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, v.LogNotice) and effect.bad:
            self._log.report(self.name, f"logs: {effect.text}")
        return super()._perform(effect)
