"""What one store's client has done, in plain numbers: cheap enough for the hot path.

Rules of this file: numbers that only grow, some by member's address. `metrics` publishes them.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class StoreCounters:
    """One for each `Store`. `sent_bytes`: payload of appends handed to a member's session. `filled_bytes`: of
    those, what a member lacked and the memory no longer had, by where it came from: (address, "local" or
    "member"). `reconnects`: claim-holding sessions had after one was lost. `questions`: reads and
    comparisons, asked of one member or more; `hedges`: members asked only because another was slow.
    `wrong_copies`: copies found to be damaged or different. `collected_objects`: copies taken away because
    nobody needs them any more."""

    appended_bytes: int = 0
    acknowledged_bytes: int = 0
    waiting_s: float = 0.0
    questions: int = 0
    hedges: int = 0
    wrong_copies: int = 0
    collected_objects: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    filled_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "StoreCounters":
        """As of now."""
        return StoreCounters(
            self.appended_bytes,
            self.acknowledged_bytes,
            self.waiting_s,
            self.questions,
            self.hedges,
            self.wrong_copies,
            self.collected_objects,
            self.sent_bytes.copy(),
            self.filled_bytes.copy(),
            self.reconnects.copy(),
        )
