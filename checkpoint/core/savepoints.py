"""Savepoints: checkpoints that stay restorable under a name until a person drops it. Pure.

A part of the coordinator, and two functions for savepoints of a region that no driver runs.

- A savepoint is stored in the record of a checkpoint (`Checkpoint.savepoints`) and nowhere else. Once that
  record is
  acknowledged, the savepoint holds, whichever driver runs the region later. It is dropped by the record of a
  checkpoint without it, which releases what only the savepoint needed (R14).
- So a request for a savepoint is a request for a checkpoint. It is in force as soon as it is accepted: every
  checkpoint built after that retains the one it names. A checkpoint that an append under way releases can no
  longer be kept.
- The note of a savepoint (`Checkpoint.notes`: who made it, when and why) is recorded and dropped with it.
- A request that no checkpoint has carried yet is known to this driver only. If the driver dies, the
  requester receives no reply.
- If no driver runs the region, its last checkpoint is recorded again under the next number with the
  savepoints changed (`recorded_again`). That releases nothing, because the driver alone decides how many
  checkpoints are retained (docs/decisions/0183).
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.manifest import (
    Checkpoint,
    SavepointNote,
    in_its_version,
    savepoint_name_problem,
    savepoint_why_problem,
)
from checkpoint.core.region_events import SavepointSettled


class Savepoints:
    """The savepoint requests of one region."""

    def __init__(self, state: CoordinatorState, checkpointing: Checkpointing) -> None:
        self._state = state
        self._checkpointing = checkpointing

    def on_savepoint_wanted(self, event: SavepointWanted, now: float) -> None:
        """Make or drop a savepoint. An invalid request is answered at once and changes nothing."""
        checkpoint = self._checkpoint_of(event)
        problem = self._problem(event, checkpoint)
        if problem:
            self._state.report(SavepointSettled(event.name, 0, problem))
            return
        if event.on and event.name not in self._state.savepoints:
            self._state.savepoint_notes[event.name] = event.note
        self._state.savepoint_changes[event.name] = checkpoint
        self.settle_or_request(now)

    def settle_or_request(self, now: float) -> None:
        """Answer the requests that are carried out. If any remain, request a checkpoint that carries them."""
        self._settle()
        state = self._state
        if state.savepoint_changes:
            state.number_wanted = max(state.number_wanted, state.last_number + 1)
            self._checkpointing.checkpoint_if_overdue(now)

    def settle_after_opening(self) -> None:
        """Answer requests by the reopened manifest.

        A checkpoint that was in doubt may have carried a request, or released the checkpoint that it names.
        """
        self._state.appending = None
        self._settle()

    def _checkpoint_of(self, event: SavepointWanted) -> int:
        if not event.on:
            return 0
        return event.checkpoint or self._state.last_number

    def _problem(self, event: SavepointWanted, checkpoint: int) -> str:
        """Return why the request cannot be carried out, empty if it can."""
        if self._state.spec.without_checkpoints or self._state.over:
            return "the region commits no more checkpoints"
        if event.on and (problem := savepoint_why_problem(event.note.why)) != "":
            return problem
        return savepoint_problem(
            event.name, checkpoint if event.on else None, self._state.savepoints, self._retained()
        )

    def _retained(self) -> list[int]:
        """Return the retained checkpoints, without those that an append under way releases."""
        kept = [checkpoint.number for checkpoint in self._state.kept]
        appending = self._state.appending
        return (
            kept
            if appending is None
            else [checkpoint for checkpoint in kept if checkpoint in appending.retained]
        )

    def _settle(self) -> None:
        """Answer each request that is carried out, or that can no longer be.

        A checkpoint that is being appended may undo what the last one holds. Then the request waits for it.
        """
        state = self._state
        held, appending = state.held_savepoints, state.appending
        kept = {checkpoint.number for checkpoint in state.kept}
        for name, checkpoint in list(state.savepoint_changes.items()):
            undone = appending is not None and appending.savepoints.get(name, 0) != checkpoint
            if held.get(name, 0) == checkpoint and not undone:
                state.report(SavepointSettled(name, checkpoint or _held_before(state.kept, name)))
            elif checkpoint and checkpoint not in kept:
                state.report(SavepointSettled(name, 0, f"checkpoint {checkpoint} was released meanwhile"))
            else:
                continue
            del state.savepoint_changes[name]
            state.savepoint_notes.pop(name, None)


def savepoint_problem(
    name: str, checkpoint: int | None, savepoints: Mapping[str, int], retained: Collection[int]
) -> str:
    """Return why the savepoint cannot be made, empty if it can. `checkpoint` None: why it cannot be dropped.

    `savepoints` are the savepoints in force, `retained` the checkpoints that can still be kept.
    """
    if checkpoint is None:
        return (
            ""
            if name in savepoints
            else f"savepoint {name!r} does not exist; existing: {_listed(savepoints)}"
        )
    # Reserved names are refused where a person names a savepoint: the project's own come here, too.
    if (problem := savepoint_name_problem(name, reserved=True)) != "":
        return problem
    if savepoints.get(name, checkpoint) != checkpoint:
        return f"savepoint {name!r} holds checkpoint {savepoints[name]}: drop it first, or use another name"
    if name not in savepoints and len(savepoints) >= limits.savepoints_max:
        return f"there are already {limits.savepoints_max} savepoints: drop one first"
    if checkpoint not in retained:
        kept = ", ".join(map(str, retained)) or "none"
        return f"checkpoint {checkpoint} is not retained; retained: {kept}"
    return ""


def recorded_again(
    kept: tuple[Checkpoint, ...],
    incarnation: int,
    savepoints: dict[str, int],
    notes: Mapping[str, SavepointNote] = MappingProxyType({}),
) -> Checkpoint:
    """Return the last of these checkpoints again, under the next number and with other savepoints.

    Restoring it restores the positions of the last one. Everything that is retained stays retained.
    """
    last = kept[-1]
    again = msgspec.structs.replace(
        last,
        number=last.number + 1,
        parent=last.number,
        incarnation=incarnation,
        rolled_back_to=last.voted_as,
        retained=(*(checkpoint.number for checkpoint in kept), last.number + 1),
        savepoints=savepoints,
        notes={name: note for name, note in {**last.notes, **notes}.items() if name in savepoints},
        phases_s={},
        edit=None,
    )
    return in_its_version(again)


def _held_before(kept: tuple[Checkpoint, ...], name: str) -> int:
    """Return the checkpoint that a dropped savepoint held, 0 if no retained checkpoint states it."""
    return next(
        (checkpoint.savepoints[name] for checkpoint in reversed(kept) if name in checkpoint.savepoints), 0
    )


def _listed(savepoints: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{name!r} (checkpoint {checkpoint})" for name, checkpoint in sorted(savepoints.items()))
        or "none"
    )
