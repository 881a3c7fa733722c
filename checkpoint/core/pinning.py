"""Pins: cuts that stay restorable until somebody lets them go, by name. A part of the coordinator.

Theory. A pin is in the record of a cut (`Cut.pins`), and nowhere else: acknowledged, it holds, whoever drives
the region later; letting it go is the record of a cut without it, which releases what only it needed (R14).
So a wish to pin is a wish for a cut. It is in force from the moment it is taken: every cut that is built from
then on retains what it names. What a cut that is out already releases cannot be pinned any more.

A wish that no cut has carried yet is this driver's alone: when the driver dies, who asked hears nothing.
"""

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import CutAppended, PinWanted
from checkpoint.core.manifest import Cut, pin_name_problem
from checkpoint.core.pausing import Pausing
from checkpoint.core.region import PinSettled, RegionSpec


class Pinning(Pausing):
    """See the top of this file."""

    def __init__(self, spec: RegionSpec) -> None:
        super().__init__(spec)
        self._wishes: dict[str, int] = {}
        """Name -> the cut to pin, 0 to let the pin go: what no cut has carried yet."""

    @property
    def pins(self) -> dict[str, int]:
        """Those in force: of the last cut, and what the next one is to change."""
        held = {**(self.last_cut.pins if self.last_cut else {}), **self._wishes}
        return {name: cut for name, cut in held.items() if cut}

    def on_pin_wanted(self, event: PinWanted, now: float) -> None:
        """Pin a cut, or let it go. What cannot be is told at once, and changes nothing."""
        cut = self._cut_meant(event)
        problem = self._problem(event, cut)
        if problem:
            self.tell(PinSettled(event.name, 0, problem))
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

    def _cut_meant(self, event: PinWanted) -> int:
        if not event.on:
            return 0
        return event.cut or (self.last_cut.cut if self.last_cut else 0)

    def _problem(self, event: PinWanted, cut: int) -> str:
        """'' or why it cannot be done."""
        pins = self.pins
        if self.spec.without_cuts or self.over:
            return "the region commits no more cuts"
        if not event.on:
            return "" if event.name in pins else f"there is no pin {event.name!r}; there are {_listed(pins)}"
        if (problem := pin_name_problem(event.name)) != "":
            return problem
        if pins.get(event.name, cut) != cut:
            return f"pin {event.name!r} holds cut {pins[event.name]}: let it go first, or take another name"
        if event.name not in pins and len(pins) >= limits.pins_max:
            return f"there are {limits.pins_max} pins already: let one go first"
        if cut not in self._retained():
            kept = ", ".join(map(str, self._retained())) or "none"
            return f"cut {cut} is not retained; {kept} can be pinned"
        return ""

    def _retained(self) -> list[int]:
        """The cuts that stay: not those that a cut on its way to the manifest releases."""
        kept = [cut.cut for cut in self.kept]
        out = self.appending
        return kept if out is None else [cut for cut in kept if cut in out.retained]

    def _settle(self) -> None:
        """Tell of each wish that came true, or cannot any more."""
        held = self.last_cut.pins if self.last_cut else {}
        kept = {cut.cut for cut in self.kept}
        for name, cut in list(self._wishes.items()):
            if held.get(name, 0) == cut:
                self.tell(PinSettled(name, cut or _was(self.kept, name)))
            elif cut and cut not in kept:
                self.tell(PinSettled(name, 0, f"cut {cut} was released meanwhile"))
            else:
                continue
            del self._wishes[name]


def _was(kept: tuple[Cut, ...], name: str) -> int:
    """Which cut the pin of that name held before it was let go, 0 if no retained cut knows."""
    return next((cut.pins[name] for cut in reversed(kept) if name in cut.pins), 0)


def _listed(pins: dict[str, int]) -> str:
    return ", ".join(f"{name!r} (cut {cut})" for name, cut in sorted(pins.items())) or "none"
