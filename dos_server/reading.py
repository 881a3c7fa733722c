"""The state of reading from a connection, and the clock of its frames. `connection` acts on them."""

from dataclasses import dataclass
from enum import Enum, auto

from dos_server.limits import (
    frame_seconds_max,
    hello_seconds_max,
    slow_frame_seconds_max,
    stalled_seconds_max,
)


class Fed(Enum):
    """How much of the buffered input was passed on."""

    ALL = auto()
    STALLED = auto()
    """Back-pressure stopped it."""
    YIELDED = auto()
    """The time slice of the connection ended."""


class ReadingState(Enum):
    """Whether a connection is read."""

    ON = auto()
    PAUSED = auto()
    ENDED = auto()


@dataclass
class FrameClock:
    """The times at which the peer connected, last sent bytes, and began the incomplete frame, if any."""

    connected: float
    last_bytes_at: float = 0.0
    began: float | None = None

    def watch(self, now: float, *, begun: bool, anew: bool) -> None:
        """Update the clock of the current frame.

        It runs from the first byte of a frame, also while the frame waits for buffer space, but not while the
        server does not read for another reason. `anew`: it is another frame than before.
        """
        if not begun:
            self.began = None
        elif anew or self.began is None:
            self.began = now

    def is_late(self, now: float, *, welcome: bool) -> bool:
        """Whether HELLO, or a frame that has begun, was not completed in time."""
        if self.began is not None and now > self.began + frame_seconds_max:
            return True
        return not welcome and now > self.connected + hello_seconds_max

    def blocks_others(self, now: float) -> bool:
        """Whether the frame makes too little progress to keep buffer space that others wait for."""
        began = now if self.began is None else self.began
        return now > self.last_bytes_at + stalled_seconds_max or now > began + slow_frame_seconds_max
