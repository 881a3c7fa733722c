"""The scrub: goes round all objects and verifies what is on the disk, slowly, for ever.

    what     every directory, in order, from a random one on; in it every object that is sound, from its
             beginning to the size that was synced when that began
    how      one look at a time: a part of one object, read from the disk and verified (`verify`)
    when     so that no more than the rate is read, nor more than a tenth of the time is spent on it; a look
             waits while the disk is at work for clients, but not for ever; a round begins at the earliest so
             long after the one before it

A look may be late: the object was mended, removed, forgotten, made anew, or poisoned meanwhile, and then says
nothing. What is looked at is remembered as the object in memory itself, which all of these replace or change:
so a look quarantines only the very copy that it read. It reads below what was synced, where nothing is ever
written again, so an append cannot be taken for damage.

Where it is, is kept in memory only: a file of it would be one more thing to keep right, for nothing. A start
begins at a random directory, so also a server that is restarted often looks at all of its data in time.

Rules of this file: what is looked at, when, and what comes of it. It knows no disk and no clock.
"""

from collections import deque
from typing import Final, NamedTuple

from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import DirectoryState, LoadState
from dos_server.core.object_state import ObjectState
from dos_server.core.reads import Reads
from dos_server.core.tables import Tables
from dos_server.core.verify import VerifyGoal, beginning
from dos_server.limits import (
    scrub_first_seconds_max,
    scrub_load_seconds,
    scrub_rest_share,
    scrub_yield_seconds,
    scrub_yield_seconds_max,
)


class ScrubPlan(NamedTuple):
    """How to scrub. `bytes_per_s` 0: not at all. `round_seconds_min`: from the begin of a round to that of
    the next one. `chance`: a number from 0 to below 1 that says where the first round begins.
    """

    bytes_per_s: int = 0
    round_seconds_min: float = 0.0
    chance: float = 0.0

    @property
    def first_seconds(self) -> float:
        """When the first round begins, after the start."""
        return min(self.round_seconds_min, scrub_first_seconds_max)


NO_SCRUB: Final = ScrubPlan()


class Scrub:
    """See the module. `rounds`, `objects`, `bytes`, `damaged`: done since the start."""

    def __init__(self, tables: Tables, reads: Reads, plan: ScrubPlan) -> None:
        self._tables = tables
        self._reads = reads
        self._plan = plan
        self._left: deque[str] | None = None
        self._round_began = 0.0
        self._directory: str | None = None
        self._loaded_it = False
        self._load_began = 0.0
        self._names: deque[str] | None = None
        self._object: ObjectState | None = None
        self._chain = beginning(0)
        self._goal = VerifyGoal(0)
        self._yielded_s = 0.0
        self.rounds = self.objects = self.bytes = self.damaged = 0

    def due(self, event: scrub_reads.ScrubDue) -> None:
        """The time for the next look has come. Asks for one look, or to be asked later; never for both."""
        if event.busy and self._yielded_s < scrub_yield_seconds_max:
            self._yielded_s += scrub_yield_seconds
            self._later(scrub_yield_seconds)
            return
        self._yielded_s = 0.0
        if self._directory is None and not self._next_directory():
            return
        directory = self._loaded()
        if directory is None:
            return
        if directory.loading is LoadState.BROKEN or not self._next_object(directory):
            self._leave(directory)
            self._later(0.0)
            return
        assert self._object is not None, "there is an object to look at"
        look = scrub_reads.ScrubRead(directory.name, self._object.name, self._chain, self._goal)
        self._tables.effects.append(look)

    def looked(self, event: scrub_reads.ScrubReadDone) -> None:
        """A look has ended: note what it found, if it was at what is there now."""
        read = 0 if event.chain is None else event.chain.position - event.look.chain.position
        self.bytes += read
        state, self._object = self._object, None
        if state is not None and self._is_there(state):
            if event.damaged_at is not None:
                self._damaged(state, event.damaged_at, event.what)
            elif event.chain is None:
                self._tell(f"{state.directory}/{state.name} was not scrubbed: {event.what}", bad=True)
            elif event.chain.offset < event.look.goal.size:
                self._object, self._chain = state, event.chain
            else:
                self.objects += 1
        self._later(max(read / self._plan.bytes_per_s, event.seconds * scrub_rest_share))

    def _damaged(self, state: ObjectState, offset: int, what: str) -> None:
        self.damaged += 1
        self._reads.quarantine(state.directory, state.name, offset)
        self._tell(f"scrub: {state.directory}/{state.name} is damaged from {offset} on: {what}", bad=True)

    def _is_there(self, state: ObjectState) -> bool:
        """Whether the object is the one in use, and says nothing bad of itself yet."""
        here = self._tables.find(state.directory, state.name)
        return here is state and state.exists and not state.damaged and state.changing is None

    def _later(self, seconds: float) -> None:
        self._tables.effects.append(scrub_reads.ScrubLater(seconds))

    def _tell(self, text: str, *, bad: bool) -> None:
        self._tables.effects.append(scrub_reads.LogNotice(text, bad))

    # Going round

    def _next_directory(self) -> bool:
        """Go to the next directory; False: the round is over, or there is none."""
        tables = self._tables
        if self._left is None:
            self._begin_round()
        assert self._left is not None, "a round has begun"
        while self._left:
            name = self._left.popleft()
            if name in tables.directory_names:
                self._directory = tables.scrubbed = name
                self._loaded_it, self._names, self._object = False, None, None
                return True
        self._end_round()
        return False

    def _begin_round(self) -> None:
        names = sorted(self._tables.directory_names)
        first = int(self._plan.chance * len(names)) if self.rounds == 0 else 0
        self._left = deque(names[first:] + names[:first])
        self._round_began = self._tables.now

    def _end_round(self) -> None:
        self._left = None
        self.rounds += 1
        took = self._tables.now - self._round_began
        self._tell(
            f"scrub: {self.rounds} rounds since the start, the last took {took:.0f} s; {self.objects} objects"
            f" and {self.bytes} bytes verified, {self.damaged} objects found damaged",
            bad=False,
        )
        self._later(max(self._plan.round_seconds_min - took, scrub_load_seconds))

    def _loaded(self) -> DirectoryState | None:
        """The directory, in memory; None: it is on its way there."""
        tables, name = self._tables, self._directory
        assert name is not None, "a directory was chosen"
        directory = tables.directories.get(name)
        if directory is None and self._loaded_it:  # it cannot be opened now: the next round looks again
            self._directory = tables.scrubbed = None
            self._later(scrub_load_seconds)
            return None
        if directory is None:
            directory = tables.directories[name] = DirectoryState(name)
            self._loaded_it, self._names, self._object = True, None, None
            self._load_began = tables.now
            tables.effects.append(v.LoadDirectory(name))
        if directory.loading is LoadState.LOADING:
            self._later(scrub_load_seconds)
            return None
        rest, self._load_began = (tables.now - self._load_began) * scrub_rest_share, tables.now
        if self._names is None and self._loaded_it and rest > 0:  # a load reads headers, at no rate
            self._names = deque(sorted(directory.objects))
            self._later(rest)
            return None
        return directory

    def _next_object(self, directory: DirectoryState) -> bool:
        """Go on with the object at hand, or to the next one; False: the directory is done."""
        if self._object is not None and self._is_there(self._object):
            return True
        if self._names is None:
            self._names = deque(sorted(directory.objects))
        while self._names:
            state = directory.objects.get(self._names.popleft())
            if state is not None and state.synced and self._is_there(state):
                self._object, self._chain = state, beginning(state.root)
                self._goal = VerifyGoal(state.synced, state.synced_digest)
                return True
        return False

    def _leave(self, directory: DirectoryState) -> None:
        """The directory is done. What was loaded for this alone goes again."""
        self._directory = self._object = self._names = self._tables.scrubbed = None
        if self._loaded_it and self._tables.is_idle(directory):
            self._tables.forget(directory)
