"""The inbox of a circuit that runs as a task, of either tier."""

from collections import deque
from typing import Final

from dataflow.worker.messages import Inbox, RestoreCircuit, ToCircuit
from tests.sim.history import ViolationError

MESSAGES_MAX: Final = 200
"""Limit of a mailbox: peers are at most four steps ahead, and a state arrives in few blocks at a time."""


class Mailbox(Inbox):
    """Messages to the circuit. A subclass wakes the task that waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[ToCircuit] = deque()

    def put(self, message: ToCircuit) -> None:
        if len(self._messages) >= MESSAGES_MAX:
            raise ViolationError("O10", f"{MESSAGES_MAX} messages wait for a circuit")
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting task."""
        raise NotImplementedError

    def take_nowait(self) -> ToCircuit | None:
        return self._messages.popleft() if self._messages else None

    def opens_parts(self, worker: int) -> list[int]:
        """Return the workers whose output the next message opens: this one's, and those that it completes."""
        first = self._messages[0] if self._messages else None
        if not isinstance(first, RestoreCircuit):
            return []
        return [worker, *first.completes]

    @property
    def next_restores(self) -> bool:
        return bool(self._messages) and isinstance(self._messages[0], RestoreCircuit)
