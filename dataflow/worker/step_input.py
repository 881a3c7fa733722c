"""The input of one step: read until the step is full, or reread exactly what a recorded division contains.

It runs on the circuit thread and moves rows from sources to the circuit. The schedule decides which step runs
and whether it takes input. The size of a read follows the duration of the previous one, so that user
functions get batches that take them tens of milliseconds.
"""

from typing import Final

from checkpoint import Division, Sources
from dataflow import limits
from dataflow.core.event_time import SourceTime
from dataflow.limits import WorkerLimits
from dataflow.sources.base import SourceReader, SplitDivision
from dataflow.worker.circuit import Circuit
from dataflow.worker.circuit_time import StepTime
from dataflow.worker.identity import Clock
from dataflow.worker.messages import Shared

_batch_growth: Final = 4
_INPUT: Final = "the input"
_ENDS: Final = "the end of a step's input"
_AT_ITS_END: Final = ""
"""The key in a division that marks, where event time flows, that the source was at its end."""


class StepInput:
    """The input of one incarnation of a worker.

    `replay` and `fill` raise OperatorError, and what sources and operators raise.
    """

    def __init__(
        self, circuit: Circuit, worker_limits: WorkerLimits, shared: Shared, clock: Clock, incarnation: int
    ) -> None:
        self._circuit = circuit
        self._limits = worker_limits
        self._shared = shared
        self._clock = clock
        self._incarnation = incarnation
        self._backlog_at = 0.0
        """When the backlog is counted next."""

    def can_replay(self, recorded: Division) -> bool:
        """Whether all sources can read the recorded division now."""
        ready = [reader.can_replay(_parts(recorded, name)) for name, reader in self._circuit.sources.items()]
        return all(ready)

    def replay(self, step: int, recorded: Division, *, dropped: bool = False) -> None:
        """Feed exactly the recorded division. dropped: read it without feeding it."""
        for name, reader in self._circuit.sources.items():
            with self._circuit.working(name, f"the input of step {step}"):
                batches = reader.replay(_parts(recorded, name))
            for batch in batches:
                self._shared.bytes_in += batch.bytes_read
                if not dropped:
                    self._circuit.feed(step, name, batch)

    def take_division(self, recorded: Division | None) -> tuple[Sources, StepTime]:
        """Return what the step read, and the event time of each source.

        Whether a source is at its end comes from the recorded division; without one, from the source itself.
        It must be recorded, because an input may be closed between two steps.
        """
        taken: Sources = {}
        now: dict[str, SourceTime] = {}
        for name, read in self._circuit.ask_sources(_ENDS, lambda reader: reader.take_division()).items():
            taken[name] = dict(read)
            if recorded is not None:
                now[name] = SourceTime(_AT_ITS_END in recorded.sources.get(name, {}))
            elif self._circuit.time.flows:
                with self._circuit.calling(name, _ENDS):
                    now[name] = self._circuit.sources[name].time_now()
            if name in now and now[name].at_end and self._circuit.time.flows:
                taken[name][_AT_ITS_END] = (0, 0)
        idle = self._circuit.ask_sources(_ENDS, lambda reader: reader.is_idle)
        return taken, StepTime(now, frozenset(filter(idle.get, idle)), recorded, self._clock.seconds())

    def idle_in(self) -> float | None:
        """Return the seconds until a step must announce that a split holds nothing back; None for never."""
        for name, reader in self._circuit.sources.items():
            splits = self._circuit.time.waits_for(name)
            if splits and not reader.exhausted and not splits <= {*reader.time_now().behind}:
                return 0.0
        return self._circuit.time.idle_in(self._clock.seconds())

    def has_input(self) -> bool:
        """Whether there may be input now, or a step must announce that no more will follow."""
        for name, reader in self._readable():
            with self._circuit.calling(name, _INPUT):  # it may call user code
                if reader.has_input:
                    return True
        exhausted = self._circuit.ask_sources(_INPUT, lambda reader: reader.exhausted)
        return self._circuit.time.has_end_to_report([*filter(exhausted.get, exhausted)])

    def note_backlog(self, now: float) -> None:
        """Count what the sources know and have not read, if the last time was long enough ago.

        One that does not know it makes the sum unknown, -1.
        """
        if now >= self._backlog_at:
            self._backlog_at = now + limits.backlog_s
            known = self._circuit.ask_sources(_INPUT, lambda reader: reader.backlog_bytes).values()
            self._shared.backlog_bytes = -1 if None in known else sum(one or 0 for one in known)

    def backlog_in(self) -> float | None:
        """Return the seconds until an idle worker must count again, because it reported that input waits."""
        waits = self._shared.backlog_bytes > 0
        return max(0.0, self._backlog_at - self._clock.seconds()) if waits else None

    def _readable(self) -> list[tuple[str, SourceReader]]:
        """Return the sources that do not wait for a broadcast table."""
        held_sources = self._circuit.time.held_sources
        return [(name, reader) for name, reader in self._circuit.sources.items() if name not in held_sources]

    def fill(self, step: int) -> None:
        """Read until the step is full, its time is over, a peer has ended it, or input is no longer wanted.

        Reads at least one batch if there is input.
        """
        left = self._limits.step_bytes_max
        deadline = self._clock.seconds() + self._limits.step_ms_max / 1000
        exhausted = self._circuit.ask_sources(_INPUT, lambda reader: reader.exhausted)
        reading = [(name, reader) for name, reader in self._readable() if not exhausted[name]]
        while reading and self._shared.room:
            for name, reader in list(reading):
                size = self._read_batch(step, name, reader, min(left, self._batch_bytes()))
                left -= size
                if not size:
                    reading.remove((name, reader))
            if left <= 0 or self._clock.seconds() > deadline or self._interrupted(step):
                return

    def _batch_bytes(self) -> int:
        """Return the size of the next batch. What was learned outlives the incarnation, with the process."""
        return min(max(self._shared.batch_bytes, limits.batch_bytes_min), self._limits.batch_bytes_max)

    def _interrupted(self, step: int) -> bool:
        shared = self._shared
        return shared.peers_at >= step or shared.pausing or shared.incarnation != self._incarnation

    def _read_batch(self, step: int, name: str, reader: SourceReader, bytes_max: int) -> int:
        begin = self._clock.seconds()
        with self._circuit.working(name, _INPUT):
            batch = reader.read(max(bytes_max, 1))
        if batch is None:
            return 0
        self._shared.bytes_in += batch.bytes_read
        self._circuit.feed(step, name, batch)
        took_ms = (self._clock.seconds() - begin) * 1000
        if 2 * batch.bytes_read < bytes_max and took_ms < limits.batch_ms_aim:
            return batch.bytes_read  # too little to estimate the duration of a whole batch
        aim = self._batch_bytes() * limits.batch_ms_aim / max(took_ms, 0.001)
        self._shared.batch_bytes = int(min(aim, self._batch_bytes() * _batch_growth))
        return batch.bytes_read


def _parts(recorded: Division, name: str) -> dict[str, SplitDivision]:
    """Return what a step read of one source."""
    parts = recorded.sources.get(name, {})
    return {split: SplitDivision(*part) for split, part in parts.items() if split != _AT_ITS_END}
