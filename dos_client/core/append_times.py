"""When the bytes of an object were appended: from that, how old what a member lacks is. Pure.

Rules of this file: sizes and times, coarsely, in bounded memory. An age told is never too young, and too
old by at most the distance of two samples.
"""

from bisect import bisect_right

from dos_client.limits import append_times_max, append_times_step_s


class AppendTimes:
    """Samples (size, time): bytes at `size` and after were appended at `time` or later.

    Invariants: sizes and times grow; at most `append_times_max` samples. When there are more, every second
    one of the older half is forgotten: the age of what is old needs no exactness."""

    __slots__ = ("_sizes", "_times")

    def __init__(self, now: float) -> None:
        self._sizes = [0]
        self._times = [now]

    def __len__(self) -> int:
        return len(self._sizes)

    def note(self, size: int, now: float) -> None:
        """The object has `size` bytes now: those to come are younger."""
        if size == self._sizes[-1]:
            self._times[-1] = now
        elif now - self._times[-1] >= append_times_step_s:
            self._sizes.append(size)
            self._times.append(now)
            if len(self._sizes) > append_times_max:
                half = append_times_max // 2
                del self._sizes[1:half:2], self._times[1:half:2]

    def age(self, offset: int, now: float) -> float:
        """At most so many seconds ago the byte at `offset` was appended."""
        place = max(0, bisect_right(self._sizes, offset) - 1)
        return max(0.0, now - self._times[place])
