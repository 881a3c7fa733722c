"""What one store's client has done, in plain numbers: cheap enough for the hot path.

Rules of this file: numbers that only grow, by member's address. `metrics` publishes them.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """One for each `Store`. `sent_bytes`: payload of appends handed to a member's session, of `filled_bytes`
    too. `filled_bytes`: of those, what a member lacked and the memory no longer had, by where it came from:
    (address, "local" or "member"). `reconnects`: claim-holding sessions had after one was lost."""

    sent_bytes: Counter[str] = field(default_factory=Counter)
    filled_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: Counter[str] = field(default_factory=Counter)
