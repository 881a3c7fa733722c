"""Traces of some appends of an object: from the append until every member has synced it.

A trace ends at the latest when the next one begins; members that have not synced by then are marked.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from dos_client.core.append_spans import AckTimes
from dos_client.writing.target import WriteTarget
from dos_monitoring import Tracer, appends_traced, tracer_of_environment
from dos_protocol.errors import DosError

log: Final = logging.getLogger("dos.client")


class AppendTracing:
    """Traces every `every`th append of one object. Used in the claim's trio run."""

    def __init__(
        self,
        tracer: Tracer,
        every: int,
        target: WriteTarget,
        directory: str,
        members: Callable[[], Mapping[bytes, str]],
    ) -> None:
        """members: returns the address of each member that the claim writes to."""
        self._tracer = tracer
        self._every = every
        self._target = target
        self._directory = directory
        self._members = members
        self._appends = 0
        self._times: AckTimes | None = None
        self._begun_s = 0.0

    def appended(self, size: int) -> None:
        """Note an append whose end is at `size`."""
        self._appends += 1
        if self._appends % self._every:
            return
        self._end(trio.current_time() - self._begun_s)
        self._times, self._begun_s = AckTimes(size), trio.current_time()
        self._target.traced = self._noted

    def _noted(self, server_id: bytes, received: int, synced: int) -> None:
        times = self._times
        assert times is not None
        at_s = trio.current_time() - self._begun_s
        times.note(server_id, received, synced, at_s)
        times.note_quorum(self._target.synced, at_s)
        if times.quorum_s is not None and times.synced_s.keys() >= self._members().keys():
            self._end(at_s)

    def _end(self, end_s: float) -> None:
        times, self._times, self._target.traced = self._times, None, None
        if times is not None:
            self._tracer.emit(times.span(self._directory, self._target.name, self._members(), end_s))


def tracing_of(
    target: WriteTarget, directory: str, members: Callable[[], Mapping[bytes, str]]
) -> AppendTracing | None:
    """Return the tracing of an object that the environment asks for, None if it asks for none.

    What makes it impossible is logged: a writer does not fail because of it.
    """
    try:
        every = appends_traced()
        tracer = tracer_of_environment() if every else None
    except (DosError, OSError) as error:
        log.warning("appends to %s are not traced: %s", target.name, error)
        return None
    return None if tracer is None else AppendTracing(tracer, every, target, directory, members)
