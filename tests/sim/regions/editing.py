"""A person who edits the state of a region now and then: adds to the count of a word at some checkpoint.

The code that `dos.edit_state` uses writes the rows. No driver is stopped before: one that runs is superseded,
and may be faster. What an edit added is in its note, which later checkpoints state as long as they state how
their line began.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from checkpoint import Edit
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.maintenance.editing import EncodedRows, edit_stopped
from dataflow.editing.calls import NO_STATE, as_table, planned, rules_for
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.regions.claiming import Host

if TYPE_CHECKING:
    from tests.sim.regions.region import Region

ADDED: Final = 1_000


def edits_in(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Return (word, what was added) of each edit that a checkpoint contains, oldest first."""
    known, line, found = {rewind.line: rewind for rewind in checkpoint.rewinds}, checkpoint.line, []
    while line:
        rewind = known[line]
        if rewind.edited:
            word, _, added = rewind.edited.partition("+")
            found.append((word, int(added)))
        line = rewind.of
    return found[::-1]


class Editor(Process):
    """The person. `busy`: an edit is under way."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "editor")
        self.busy = False
        self._region = region
        self._rng = region.rng.stream("editor")
        self._host = Host(self, region.network, region.store, region.history, self._rng)
        self.start("edit", self._edit())

    async def _edit(self) -> None:
        while not self._region.finishing:
            await self.sleep(1.0 + self._rng.expovariate(0.3))
            committed = self._region.record.committed
            if not committed or self._region.finishing or self._region.finished:
                continue
            to = self._rng.choice(["", f"checkpoint:{self._rng.choice(committed[-1].retained)}"])
            self.busy = True
            try:
                await edit_stopped(
                    self._host, self._region.spec.name, self._rows_for, to=to, allow_republish=True
                )
                self._region.saw("a state is edited")
            except DosError as error:  # the region is edited, or is not
                self._region.saw(f"editor: {type(error).__name__}")
            self.busy = False

    async def _rows_for(self, checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        """Return the row of a word with a higher count, as its owner stores it."""
        read = {
            split: at.position
            for part in checkpoint.workers.values()
            for splits in part.sources.values()
            for split, at in splits.items()
        }
        word = self._rng.choice(self._region.given.rows)[0]
        count = sum(one == word for one, _ in self._region.given.upto(read))
        count += sum(added for one, added in edits_in(checkpoint) if one == word)
        table = as_table("count", pa.table({"word": [word], "count": [count + ADDED]}))
        rules = rules_for(self._region.plan, self._region.spec.name, {"count": table})
        plan = planned(rules, {"count": table}, NO_STATE, checkpoint.layout)
        return plan.rows, Edit(by=f"{word}+{ADDED}", wall_time_ms=1)
