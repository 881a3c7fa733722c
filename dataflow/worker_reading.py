"""The input of one step: read until the step is full, or read again what a recorded division says. Circuit
thread only.

Rules of this file: sources to circuit; which step, and whether it takes input at all, is decided by the
schedule. How much one call reads follows the time the last one took, so that user functions see batches
that take them some tens of milliseconds.
"""

from typing import Final

from checkpoint.core.divisions import Division, Sources
from dataflow import limits
from dataflow.circuit import Circuit
from dataflow.core.event_time import END, IDLE, UNKNOWN, Mark
from dataflow.errors import InputEncodingError, InputReadError, LineTooLongError, OperatorError
from dataflow.limits import WorkerLimits
from dataflow.sources.base import SourceReader, SplitDivision
from dataflow.worker_identity import Clock
from dataflow.worker_messages import Shared

_batch_growth: Final = 4
_AT_ITS_END: Final = ""
"""The key under which a division says, where event time flows, that the source was at its end."""


class Reading:
    """Of one incarnation of a worker. See the top of this file. `replay` and `fill` raise OperatorError, and
    what sources and operators raise.
    """

    def __init__(
        self, circuit: Circuit, worker_limits: WorkerLimits, shared: Shared, clock: Clock, incarnation: int
    ) -> None:
        self._circuit = circuit
        self._limits = worker_limits
        self._shared = shared
        self._clock = clock
        self._incarnation = incarnation
        self._batch_bytes = limits.batch_bytes_min * 16

    def can_replay(self, recorded: Division) -> bool:
        """Whether all sources have at hand what the division says."""
        ready = [reader.can_replay(_parts(recorded, name)) for name, reader in self._circuit.sources.items()]
        return all(ready)

    def replay(self, step: int, recorded: Division, *, dropped: bool = False) -> None:
        """Feed exactly what the division says; dropped: read it, and feed nothing."""
        for name, reader in self._circuit.sources.items():
            for batch in reader.replay(_parts(recorded, name)):
                self._shared.bytes_in += batch.bytes_read
                if not dropped:
                    self._circuit.feed(step, name, batch)

    def take_division(self, recorded: Division | None) -> tuple[Sources, dict[str, Mark]]:
        """What the step took, and how far event time is at each source: at its end, as the recorded division
        says, or as it is now. It must be recorded: a handle may be closed between two steps.
        """
        taken: Sources = {}
        marks: dict[str, Mark] = {}
        for name, reader in self._circuit.sources.items():
            taken[name] = dict(reader.take_division())
            at_end = reader.exhausted
            if recorded is not None:
                at_end = _AT_ITS_END in recorded.sources.get(name, {})
            if at_end and self._circuit.time.flows:
                taken[name][_AT_ITS_END] = (0, 0)
            marks[name] = END if at_end else IDLE if reader.is_idle else UNKNOWN
        return taken, marks

    def fill(self, step: int) -> None:
        """Read until the step is full, late, ended by a peer, or no input is wanted any more; one batch at
        least, if there is input.
        """
        left = self._limits.step_bytes_max
        deadline = self._clock.seconds() + self._limits.step_ms_max / 1000
        reading = [(name, reader) for name, reader in self._circuit.sources.items() if not reader.exhausted]
        while reading and self._shared.room:
            for name, reader in list(reading):
                size = self._read_batch(step, name, reader, min(left, self._batch_bytes))
                left -= size
                if not size:
                    reading.remove((name, reader))
            if left <= 0 or self._clock.seconds() > deadline or self._interrupted(step):
                return

    def _interrupted(self, step: int) -> bool:
        shared = self._shared
        return shared.peers_at >= step or shared.pausing or shared.incarnation != self._incarnation

    def _read_batch(self, step: int, name: str, reader: SourceReader, bytes_max: int) -> int:
        begin = self._clock.seconds()
        try:
            batch = reader.read(max(bytes_max, 1))
        except (InputEncodingError, InputReadError, LineTooLongError) as error:
            raise OperatorError(name, "the input", str(error.args[0]), remedy=error.remedy) from error
        if batch is None:
            return 0
        self._shared.bytes_in += batch.bytes_read
        self._circuit.feed(step, name, batch)
        took_ms = (self._clock.seconds() - begin) * 1000
        aim = self._batch_bytes * limits.batch_ms_aim / max(took_ms, 0.001)
        aim = min(aim, self._batch_bytes * _batch_growth, self._limits.batch_bytes_max)
        self._batch_bytes = max(int(aim), limits.batch_bytes_min)
        return batch.bytes_read


def _parts(recorded: Division, name: str) -> dict[str, SplitDivision]:
    """What a step took of one source."""
    parts = recorded.sources.get(name, {})
    return {split: SplitDivision(*part) for split, part in parts.items() if split != _AT_ITS_END}
