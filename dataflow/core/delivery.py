"""How often the sinks of a region publish a row when workers fail.

    exactly-once    a row is published when it can no longer be rolled back, or a reset rolls it back
    at-least-once   a row is published when its step ends, and again if a reset replays the step
    at-most-once    a row is published when it is durable that it was read; a reset does not replay it

This module only defines the names. Each sink implements them (`SinkSpec.delivers`).
`worker/circuit_thread.py` decides which steps are replayed.

In all three, the state of a checkpoint and the positions of its sources are consistent. With at-most-once, a
reset continues after the last input that was read: rows after the last checkpoint are then missing from the
state, and perhaps from the sinks.
"""

from typing import Final, Literal, TypeAlias

Delivery: TypeAlias = Literal["at-most-once", "at-least-once", "exactly-once"]
DELIVERIES: Final = ("at-most-once", "at-least-once", "exactly-once")
