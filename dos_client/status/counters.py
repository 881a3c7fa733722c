"""Counters of what one store's client has done, cheap enough for the hot path.

All of them only grow; some are kept per member address. `metrics` publishes them.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class StoreCounters:
    """The counters of one `Store`.

    - `sent_bytes`: payload of appends passed to a member's session, by address.
    - `filled_bytes`: those of the sent bytes that were no longer in memory, by (address, source). The source
      is "local" or "member".
    - `reconnects`: sessions with a claim that were opened after one was lost, by address.
    - `questions`: reads and comparisons, each sent to at least one member.
    - `hedges`: requests to a further member only because another was slow.
    - `faulty_copies`: copies found to be damaged or different.
    - `collected_objects`: copies deleted because they are no longer needed.
    """

    appended_bytes: int = 0
    acknowledged_bytes: int = 0
    waiting_s: float = 0.0
    questions: int = 0
    hedges: int = 0
    faulty_copies: int = 0
    collected_objects: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    filled_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "StoreCounters":
        """Return a snapshot."""
        return StoreCounters(
            self.appended_bytes,
            self.acknowledged_bytes,
            self.waiting_s,
            self.questions,
            self.hedges,
            self.faulty_copies,
            self.collected_objects,
            self.sent_bytes.copy(),
            self.filled_bytes.copy(),
            self.reconnects.copy(),
        )
