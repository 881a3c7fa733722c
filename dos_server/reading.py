"""Whether a connection is read from, how far what came was handed over, and the clock of its frames.

Rules of this file: values and times. What follows from them, `connection` does.
"""

from dataclasses import dataclass
from enum import Enum, auto

from dos_server.limits import (
    frame_seconds_max,
    hello_seconds_max,
    slow_frame_seconds_max,
    stalled_seconds_max,
)


class Fed(Enum):
    """How far what had come was handed over."""

    ALL = auto()
    STALLED = auto()
    """Back-pressure."""
    YIELDED = auto()
    """Its slice of the round is over."""


class ReadingState(Enum):
    """Whether a connection is read from."""

    ON = auto()
    PAUSED = auto()
    ENDED = auto()


@dataclass
class FrameClock:
    """When the peer connected, last sent bytes, and began the frame that is not whole yet, if one has
    begun."""

    connected: float
    bytes_came: float = 0.0
    began: float | None = None

    def watch(self, now: float, *, begun: bool, anew: bool) -> None:
        """The clock of a frame runs from its first byte, also while it waits for room; and not while the
        server does not read for another reason. `anew`: another one than before."""
        if not begun:
            self.began = None
        elif anew or self.began is None:
            self.began = now

    def is_late(self, now: float, *, welcome: bool) -> bool:
        """HELLO, or a frame that has begun, did not become whole in time."""
        if self.began is not None and now > self.began + frame_seconds_max:
            return True
        return not welcome and now > self.connected + hello_seconds_max

    def keeps_others_waiting(self, now: float) -> bool:
        """Nothing comes, or too slowly for times in which others want the room that the frame has."""
        began = now if self.began is None else self.began
        return now > self.bytes_came + stalled_seconds_max or now > began + slow_frame_seconds_max
