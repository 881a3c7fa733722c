"""Alignment: when is a step complete on a channel, in which order are its batches processed, and is there a
cut.

Rules of this file: one consumer, one channel (exchange), all its senders. It keeps what arrives early and
hands out whole steps; it knows no bytes, no sockets and no operators. A circuit with several exchanges has
one `Alignment` for each and merges their cuts with `cut_of_step`.

Theory. Every sender ends step n on a channel with STEP_END(n). The consumer processes step n only when
STEP_END(n) of *all* senders is in, and then in the order (sender, seq), whatever the order of arrival: so a
replay does what the first run did. A cut happens at the end of step n if and only if ANY sender's
STEP_END(n) asks for a number above the last cut. All consumers see the same STEP_ENDs, so all decide alike,
without a round trip. A worker that hears of a cut late and asks for the same number again in a later step
changes nothing: the number is not above the last cut any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from checkpoint import limits
from checkpoint.errors import StepOrderError

T = TypeVar("T")


class CompleteStep(NamedTuple, Generic[T]):
    """All that the senders sent for one step on one channel."""

    step: int
    cut: int
    """The cut at the end of this step as far as this channel knows, 0 none."""
    final: bool
    items: tuple[T, ...]
    """In the order (sender, seq)."""


@dataclass(slots=True)
class _SenderStep(Generic[T]):
    items: list[T] = field(default_factory=list)
    seq_next: int = 0
    ended: bool = False
    cut: int = 0
    final: bool = False


class Alignment(Generic[T]):
    """What has arrived on one channel from each of `senders` senders, and which step is complete.

    Invariants: `step` is the step being aligned; steps below it were handed out once, in order; nothing is
    kept for a step at or past `step + steps_ahead_max`. After an error the alignment is of no further use:
    the region resets.
    """

    def __init__(
        self,
        senders: int,
        *,
        first_step: int,
        last_cut: int,
        steps_ahead_max: int = limits.steps_ahead_max,
    ) -> None:
        if not 0 < senders <= limits.workers_max:
            raise ValueError(f"between 1 and {limits.workers_max} senders, not {senders}")
        self.step = first_step
        self.last_cut = last_cut
        self._senders = senders
        self._ahead_max = steps_ahead_max
        self._steps: dict[int, list[_SenderStep[T]]] = {}

    def data(self, sender: int, step: int, seq: int, item: T) -> None:
        """A batch (or punctuation) of one sender. Raises StepOrderError and keeps nothing of it."""
        entry = self._next_of(sender, step, seq)
        entry.items.append(item)

    def step_end(self, sender: int, step: int, seq: int, *, cut: int = 0, final: bool = False) -> None:
        """The sender's barrier: `seq` counts on from its batches of this step, so a lost batch shows."""
        entry = self._next_of(sender, step, seq)
        entry.ended = True
        entry.cut = cut
        entry.final = final

    def first_sight(self) -> int | None:
        """The highest step that any peer has ended and that is not handed out: own sources end up to it
        too.
        """
        ended = [step for step, senders in self._steps.items() if any(entry.ended for entry in senders)]
        return max(ended, default=None)

    def missing(self) -> list[int]:
        """Senders whose STEP_END of the step being aligned is not in: who holds the region up."""
        entries = self._steps.get(self.step)
        if entries is None:
            return list(range(self._senders))
        return [sender for sender, entry in enumerate(entries) if not entry.ended]

    def take(self) -> CompleteStep[T] | None:
        """The step being aligned if it is complete, and go on to the next; else None."""
        if self.missing():
            return None
        entries = self._steps.pop(self.step)
        cut = cut_of_step((entry.cut for entry in entries), self.last_cut)
        done = CompleteStep(
            self.step,
            cut,
            bool(cut) and any(entry.final for entry in entries if entry.cut == cut),
            tuple(item for entry in entries for item in entry.items),
        )
        self.last_cut = max(self.last_cut, cut)
        self.step += 1
        return done

    def _next_of(self, sender: int, step: int, seq: int) -> _SenderStep[T]:
        if not 0 <= sender < self._senders:
            raise StepOrderError(f"a frame of sender {sender}; there are {self._senders}")
        if step < self.step:
            raise StepOrderError(
                f"sender {sender} sends for step {step}, which it had ended; {self.step} is next"
            )
        if step >= self.step + self._ahead_max:
            raise StepOrderError(
                f"sender {sender} is at step {step}, more than {self._ahead_max} ahead of step {self.step}"
            )
        entry = self._entry(sender, step)
        if entry.ended:
            raise StepOrderError(f"sender {sender} sends for step {step} after its end")
        if seq != entry.seq_next:
            raise StepOrderError(
                f"sender {sender}, step {step}: frame {seq} came where {entry.seq_next} was due"
            )
        entry.seq_next += 1
        return entry

    def _entry(self, sender: int, step: int) -> _SenderStep[T]:
        before = self._steps.get(step - 1)
        if step > self.step and (before is None or not before[sender].ended):
            raise StepOrderError(f"sender {sender} sends for step {step} before it ended step {step - 1}")
        if step not in self._steps:
            self._steps[step] = [_SenderStep() for _ in range(self._senders)]
        return self._steps[step][sender]


def cut_of_step(asked: Iterable[int], last_cut: int) -> int:
    """The cut at the end of a step: the highest number asked for by any sender, if above the last cut, else
    0.

    Merges what senders ask on one channel, and what the channels of one step say.
    """
    highest = max(asked, default=0)
    return highest if highest > last_cut else 0
