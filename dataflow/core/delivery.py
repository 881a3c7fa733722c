"""How often the sinks of a region show a row, when workers fail.

Rules of this file: words. What a sink makes of them is the sink's (`SinkSpec.delivers`); which steps are
given again, `worker/circuit_incarnation.py`'s.

    exactly-once    a row is shown when it can no longer be taken back, or is taken back by a reset
    at-least-once   a row is shown as soon as its step is over, and again when a reset gives it again
    at-most-once    a row is shown when it is durable that it was read; a reset gives none again that was

In all three the state of a cut and the positions of its sources belong together. With at-most-once a reset
goes on behind what was read: rows that no cut covers are in no state then, and perhaps in no sink.
"""

from typing import Final, Literal, TypeAlias

Delivery: TypeAlias = Literal["at-most-once", "at-least-once", "exactly-once"]
DELIVERIES: Final = ("at-most-once", "at-least-once", "exactly-once")
