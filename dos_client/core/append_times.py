"""When the bytes of an object were appended, to compute the age of what a member lacks. Pure: no I/O.

Memory is bounded. A returned age is never too low, and too high by at most the distance of two samples.
"""

from bisect import bisect_right

from dos_client.limits import append_times_max, append_times_step_s


class AppendTimes:
    """Samples (size, time): the bytes at `size` and after were appended at `time` or later.

    Invariants: sizes and times grow; there are at most `append_times_max` samples. When there would be more,
    every second sample of the older half is dropped, because old ages need less precision.
    """

    __slots__ = ("_sizes", "_times")

    def __init__(self, now: float) -> None:
        self._sizes = [0]
        self._times = [now]

    def __len__(self) -> int:
        return len(self._sizes)

    def note(self, size: int, now: float) -> None:
        """Record that the object has `size` bytes at time `now`. Later bytes are younger."""
        if size == self._sizes[-1]:
            self._times[-1] = now
        elif now - self._times[-1] >= append_times_step_s:
            self._sizes.append(size)
            self._times.append(now)
            if len(self._sizes) > append_times_max:
                half = append_times_max // 2
                del self._sizes[1:half:2], self._times[1:half:2]

    def age(self, offset: int, now: float) -> float:
        """Return an upper bound, in seconds, for the age of the byte at `offset`."""
        index = max(0, bisect_right(self._sizes, offset) - 1)
        return max(0.0, now - self._times[index])
