"""Pins: cuts that stay restorable until somebody lets them go, by name. A part of the coordinator.

Theory. A pin is in the record of a cut (`Cut.savepoints`), and nowhere else: acknowledged, it holds, whoever drives
the region later; letting it go is the record of a cut without it, which releases what only it needed (R14).
So a wish to pin is a wish for a cut. It is in force from the moment it is taken: every cut that is built from
then on retains what it names. What a cut that is out already releases cannot be pinned any more.

A wish that no cut has carried yet is this driver's alone: when the driver dies, who asked hears nothing.

Of a region that no driver runs there is no cut to carry a wish. Its last cut is recorded once more, under the
next number, with the pins changed (`once_more`); nothing is released by that, because how many cuts are
retained is the driver's to say (docs/decisions/0183).
"""

from collections.abc import Collection, Mapping

import msgspec

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import CutAppended, SavepointWanted
from checkpoint.core.manifest import Cut, savepoint_name_problem, version_with
from checkpoint.core.pausing import Pausing
from checkpoint.core.region import RegionSpec, SavepointSettled


class Savepoints(Pausing):
    """See the top of this file."""

    def __init__(self, spec: RegionSpec) -> None:
        super().__init__(spec)
        self._wishes: dict[str, int] = {}
        """Name -> the cut to pin, 0 to let the pin go: what no cut has carried yet."""

    @property
    def savepoints(self) -> dict[str, int]:
        """Those in force: of the last cut, and what the next one is to change."""
        held = {**(self.last_cut.savepoints if self.last_cut else {}), **self._wishes}
        return {name: cut for name, cut in held.items() if cut}

    def on_pin_wanted(self, event: SavepointWanted, now: float) -> None:
        """Pin a cut, or let it go. What cannot be is told at once, and changes nothing."""
        cut = self._cut_meant(event)
        problem = self._problem(event, cut)
        if problem:
            self.tell(SavepointSettled(event.name, 0, problem))
            return
        self._wishes[event.name] = cut
        self._settle()
        if self._wishes:
            self.request_cut(now)

    def on_cut_appended(self, event: CutAppended, now: float) -> None:
        """Tell whose wish it carried; what came too late for it needs another one."""
        super().on_cut_appended(event, now)
        self._settle()
        if self._wishes:
            self.request_cut(now)

    def settle_after_opening(self) -> None:
        """The manifest is held again: a cut that was in doubt may have carried a wish, or released what it
        names.
        """
        self.appending = None
        self._settle()

    def _cut_meant(self, event: SavepointWanted) -> int:
        if not event.on:
            return 0
        return event.cut or (self.last_cut.cut if self.last_cut else 0)

    def _problem(self, event: SavepointWanted, cut: int) -> str:
        """'' or why it cannot be done."""
        if self.spec.without_cuts or self.over:
            return "the region commits no more cuts"
        return savepoint_problem(event.name, cut if event.on else None, self.savepoints, self._retained())

    def _retained(self) -> list[int]:
        """The cuts that stay: not those that a cut on its way to the manifest releases."""
        kept = [cut.cut for cut in self.kept]
        out = self.appending
        return kept if out is None else [cut for cut in kept if cut in out.retained]

    def _settle(self) -> None:
        """Tell of each wish that came true, or cannot any more."""
        held = self.last_cut.savepoints if self.last_cut else {}
        kept = {cut.cut for cut in self.kept}
        for name, cut in list(self._wishes.items()):
            if held.get(name, 0) == cut:
                self.tell(SavepointSettled(name, cut or _was(self.kept, name)))
            elif cut and cut not in kept:
                self.tell(SavepointSettled(name, 0, f"cut {cut} was released meanwhile"))
            else:
                continue
            del self._wishes[name]


def savepoint_problem(
    name: str, cut: int | None, savepoints: Mapping[str, int], retained: Collection[int]
) -> str:
    """'' or why that cut cannot be pinned; cut None: why the pin cannot be let go."""
    if cut is None:
        return "" if name in savepoints else f"there is no pin {name!r}; there are {_listed(savepoints)}"
    if (problem := savepoint_name_problem(name)) != "":
        return problem
    if savepoints.get(name, cut) != cut:
        return f"pin {name!r} holds cut {savepoints[name]}: let it go first, or take another name"
    if name not in savepoints and len(savepoints) >= limits.savepoints_max:
        return f"there are {limits.savepoints_max} pins already: let one go first"
    if cut not in retained:
        kept = ", ".join(map(str, retained)) or "none"
        return f"cut {cut} is not retained; {kept} can be pinned"
    return ""


def once_more(kept: tuple[Cut, ...], incarnation: int, savepoints: dict[str, int]) -> Cut:
    """The last of these cuts again, under the next number and with other pins: whoever restores it restores
    that one. All that is retained stays so.
    """
    last = kept[-1]
    return msgspec.structs.replace(
        last,
        cut=last.cut + 1,
        parent=last.cut,
        incarnation=incarnation,
        rolled_back_to=last.rolled_back_to or last.cut,
        retained=(*(cut.cut for cut in kept), last.cut + 1),
        savepoints=savepoints,
        version=version_with(savepoints, last.workers),
        phases_s={},
    )


def _was(kept: tuple[Cut, ...], name: str) -> int:
    """Which cut the pin of that name held before it was let go, 0 if no retained cut knows."""
    return next((cut.savepoints[name] for cut in reversed(kept) if name in cut.savepoints), 0)


def _listed(savepoints: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} (cut {cut})" for name, cut in sorted(savepoints.items())) or "none"
