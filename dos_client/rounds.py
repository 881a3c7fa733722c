"""The sessions of a trio run in rounds: one task reads every socket that is ready, one task sends.

Two tasks in each session would be switched to for every append and member (docs/decisions/0070). Instead, a
round reads and handles everything that has arrived. The callers that it wakes then append, and after all of
them each session sends once. Both are system tasks, because sessions of many owners share them: a call that
raises would end the trio run.
"""

from typing import Any

import trio

from dos_tls.readiness import Call, Readiness, Rounds


class ClientRounds:
    """The reader and the sender of all sessions whose sockets `readiness` watches. They begin with the first
    session, and end with the trio run.
    """

    def __init__(self, readiness: Rounds) -> None:
        self._readiness = readiness
        self._to_send: dict[Call, None] = {}
        self._parked: trio.lowlevel.Task | None = None
        self._running = False

    def join(self) -> Rounds:
        """Return where a session of this trio run has its socket watched."""
        if not self._running:
            self._running = True
            trio.lowlevel.spawn_system_task(self._read)
            trio.lowlevel.spawn_system_task(self._send)
        return self._readiness

    def send_soon(self, call: Call) -> None:
        """Call once, after every task that can run now has run. The call must not raise."""
        self._to_send[call] = None
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None

    async def _read(self) -> None:
        try:
            await self._readiness.run(lambda: None)
        finally:
            self._readiness.close()

    async def _send(self) -> None:
        while True:
            calls, self._to_send = self._to_send, {}
            for call in calls:
                call()
            if self._to_send:  # a call sends a bounded number of bytes: readers and callers have their turns
                await trio.lowlevel.checkpoint()
            else:
                self._parked = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._cancelled)

    def _cancelled(self, _: Any) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED


_of_run: trio.lowlevel.RunVar[ClientRounds] = trio.lowlevel.RunVar("dos_client.rounds")


def rounds_of_run() -> ClientRounds:
    """Return the rounds of the real sockets of this trio run."""
    try:
        return _of_run.get()
    except LookupError:
        rounds = ClientRounds(Readiness())
        _of_run.set(rounds)
        return rounds
