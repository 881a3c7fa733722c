"""Barrier alignment of one channel: when a step is complete, its processing order, and its checkpoint. Pure.

1. Every sender ends step n on a channel with STEP_END(n).
2. The consumer processes step n only after STEP_END(n) of *all* senders, in the order (sender, seq).
   Therefore a replay does what the first run did.
3. A checkpoint happens at the end of step n if and only if *any* STEP_END(n) requests a number above the last
   checkpoint. All consumers receive the same STEP_ENDs, so all decide alike without a round trip.
4. A request that a worker makes too late, in a later step, has no effect: its number is not above the last
   one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from checkpoint import limits
from dos_protocol.errors import RemoteProtocolError

T = TypeVar("T")


class CompleteStep(NamedTuple, Generic[T]):
    """Everything that the senders sent for one step on one channel."""

    step: int
    checkpoint: int
    """The checkpoint at the end of this step as far as this channel knows, 0 for none."""
    final: bool
    items: tuple[T, ...]
    """In the order (sender, seq)."""


@dataclass(slots=True)
class _SenderStep(Generic[T]):
    items: list[T] = field(default_factory=list)
    seq_next: int = 0
    ended: bool = False
    checkpoint: int = 0
    final: bool = False


class Alignment(Generic[T]):
    """The frames that have arrived on one channel from each sender. Each step below `step` was returned once,
    in order; nothing is kept at or above `step + steps_ahead_max`, or the step of `produced` plus that.
    After an error it must not be used again: the region resets.
    """

    def __init__(
        self,
        senders: int,
        *,
        first_step: int,
        last_checkpoint: int,
        steps_ahead_max: int = limits.steps_ahead_max,
    ) -> None:
        if not 0 < senders <= limits.workers_max:
            raise ValueError(f"a channel has 1 to {limits.workers_max} senders, got {senders}")
        self.step = first_step
        self.last_checkpoint = last_checkpoint
        self._senders = senders
        self._ahead_max = steps_ahead_max
        self._produced = 0
        self._steps: dict[int, list[_SenderStep[T]]] = {}

    def data(self, sender: int, step: int, seq: int, item: T) -> None:
        """Take a batch (or punctuation) of one sender. If it raises, the item is not kept."""
        entry = self._next_of(sender, step, seq)
        entry.items.append(item)

    def step_end(self, sender: int, step: int, seq: int, *, checkpoint: int = 0, final: bool = False) -> None:
        """Take the sender's barrier. `seq` counts its batches too, so a lost batch is detected."""
        entry = self._next_of(sender, step, seq)
        entry.ended = True
        entry.checkpoint = checkpoint
        entry.final = final

    def produced(self, step: int) -> None:
        """Note that this worker, which is behind its senders, has produced a step: they send those after it
        (local recovery).
        """
        self._produced = step

    # It sends them again: kept, its batches would count twice.
    def restart(self, sender: int) -> int:
        """Forget what a sender sent for later steps. Return the last step that was returned."""
        for senders in self._steps.values():
            senders[sender] = _SenderStep()
        return self.step - 1

    def missing(self) -> list[int]:
        """Return the senders whose STEP_END of the step being aligned has not arrived."""
        entries = self._steps.get(self.step)
        if entries is None:
            return list(range(self._senders))
        return [sender for sender, entry in enumerate(entries) if not entry.ended]

    def take(self) -> CompleteStep[T] | None:
        """Return the step being aligned and go to the next one; None if it is not complete."""
        if self.missing():
            return None
        entries = self._steps.pop(self.step)
        checkpoint = checkpoint_of_step((entry.checkpoint for entry in entries), self.last_checkpoint)
        done = CompleteStep(
            self.step,
            checkpoint,
            bool(checkpoint) and any(entry.final for entry in entries if entry.checkpoint == checkpoint),
            tuple(item for entry in entries for item in entry.items),
        )
        self.last_checkpoint = max(self.last_checkpoint, checkpoint)
        self.step += 1
        return done

    def _next_of(self, sender: int, step: int, seq: int) -> _SenderStep[T]:
        if not 0 <= sender < self._senders:
            raise RemoteProtocolError(
                f"frame of sender {sender}, but the channel has {self._senders} senders"
            )
        if step < self.step:
            raise RemoteProtocolError(
                f"sender {sender} sent a frame for step {step}, which is over; step {self.step} is next"
            )
        if step >= max(self.step, self._produced) + self._ahead_max:
            raise RemoteProtocolError(
                f"sender {sender} is at step {step}, at least {self._ahead_max} ahead of step {self.step}"
            )
        entry = self._entry(sender, step)
        if entry.ended:
            raise RemoteProtocolError(
                f"sender {sender} sent a frame for step {step} after it ended that step"
            )
        if seq != entry.seq_next:
            raise RemoteProtocolError(
                f"sender {sender}, step {step}: expected frame {entry.seq_next}, got frame {seq}"
            )
        entry.seq_next += 1
        return entry

    def _entry(self, sender: int, step: int) -> _SenderStep[T]:
        before = self._steps.get(step - 1)
        if step > self.step and (before is None or not before[sender].ended):
            raise RemoteProtocolError(f"sender {sender} sent step {step} before it ended step {step - 1}")
        if step not in self._steps:
            self._steps[step] = [_SenderStep() for _ in range(self._senders)]
        return self._steps[step][sender]


def checkpoint_of_step(requested: Iterable[int], last_checkpoint: int) -> int:
    """Return the checkpoint at the end of a step: the highest of `requested`, if above the last one,
    otherwise 0.
    """
    highest = max(requested, default=0)
    return highest if highest > last_checkpoint else 0
