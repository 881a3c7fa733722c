"""When what is sent over a link arrives, from a trace. Times are seconds since the start of the trace.

A link is a queue, as a TCP connection: what is sent later never arrives earlier, so what is sent when a large
delay ends waits for what is still under way. What is sent while a pair is cut off arrives after the next
sample that is not.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tests.sites.simulation.trace import SAMPLES, STEP_S, UNIT_S, UNREACHABLE, Delays, Trace

Times = npt.NDArray[np.float64]
Links = npt.NDArray[np.int64]

DAY_S: Final = float(SAMPLES * STEP_S)
_BEFORE: Final = 360
"""Samples of the day before that are loaded: a queue of that hour may reach into the day."""
_AFTER: Final = 1440
"""Samples of the next day: what is sent at the end of a day may wait for so long. After the end of the trace,
and after these four hours, the last sample counts that is not cut off."""
WITHIN: Final = 0
"""The link of a server to itself."""


class Network:
    """The links of a trace. One day is loaded at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.servers = [server.name for server in trace.header.servers]
        self._links = np.zeros((len(self.servers), len(self.servers)), np.int64)
        for number, (a, b) in enumerate(trace.header.pairs(), start=1):
            self._links[a, b] = self._links[b, a] = number
        self._numbers = {name: at for at, name in enumerate(self.servers)}
        self._days: dict[int, Delays] = {}

    def links(self, senders: list[str], reader: str) -> Links:
        """Return the numbers of the links from these servers to one."""
        return self._links[[self._numbers[name] for name in senders], self._numbers[reader]]

    def load(self, day: int) -> None:
        """Load a day, so that `arrive` knows what is sent on it. Raises TraceError."""
        near = [one for one in (day - 1, day, day + 1) if 0 <= one < self.trace.header.days]
        self._days = {
            one: self._days.get(one, None) if one in self._days else self.trace.delays(one) for one in near
        }
        parts = [self._days[day]]
        before = _BEFORE if day - 1 in self._days else 0
        if before:
            parts.insert(0, self._days[day - 1][:, -before:])
        if day + 1 in self._days:
            parts.append(self._days[day + 1][:, :_AFTER])
        self._start = day * DAY_S - before * STEP_S
        self._delay, self._wait = _tables(np.concatenate(parts, axis=1))

    def arrive(self, links: Links, sent: Times) -> Times:
        """Return when what is sent arrives. links: broadcast with the times. What is never sent, at infinity,
        never arrives.
        """
        places = (sent - self._start) / STEP_S
        samples = np.clip(places, 0, self._delay.shape[1] - 1).astype(np.int64)
        begins = self._start + samples * STEP_S
        return np.maximum(sent + self._delay[links, samples], begins + self._wait[links, samples])

    def means_ms(self) -> tuple[Times, Times]:
        """Return the mean and the least delay of each pair on the first day, while it was not cut off."""
        delays = np.where((day := self.trace.delays(0)) == UNREACHABLE, np.nan, day * (UNIT_S * 1000))
        return np.nanmean(delays, axis=1), np.nanmin(delays, axis=1)


def _tables(delays: Delays) -> tuple[npt.NDArray[np.float32], Times]:
    """Return the delay of each link and sample; and how long after the begin of the sample nothing arrives.

    Both in seconds. Link 0 leads from a server to itself.
    """
    count = delays.shape[1]
    samples = np.arange(count)
    cut = delays == UNREACHABLE
    delay = np.where(cut, 0, delays).astype(np.float32) * np.float32(UNIT_S)
    ends = np.where(cut, -np.inf, (samples + 1) * STEP_S + delay)
    queued = np.maximum.accumulate(ends, axis=1)
    wait = np.full(delays.shape, -np.inf)
    wait[:, 1:] = queued[:, :-1] - samples[1:] * STEP_S
    following = np.minimum.accumulate(np.where(cut, count, samples)[:, ::-1], axis=1)[:, ::-1]
    following = np.minimum(following, count - 1)
    opens = (following - samples) * STEP_S  # after the begin of a sample that is cut off
    rows = np.arange(len(delays))[:, None]
    reopened = opens + np.maximum(delay[rows, following], wait[rows, following])
    wait = np.where(cut, reopened, wait)
    none = np.zeros((1, count), np.float32)
    return np.concatenate([none, delay]), np.concatenate([none, wait])
