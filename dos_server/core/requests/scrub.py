"""The scrub: verifies all stored objects on the disk, slowly and continuously.

    what  every directory in order, starting at a random one; in it every sound object, from its beginning
          to the size that was synced when its verification began
    when  at most at the configured rate and at most a tenth of the time; a read is delayed while the disk
          works for clients, but not without limit; a round begins no earlier than `round_seconds_min`
          after the begin of the previous one

A result may be late: the object may have been replaced or changed in between. The scrub remembers that very
object, so a result only quarantines the copy that was read. It reads below the synced size, where nothing is
written again. The progress is in memory only: a random first directory covers all data over time.
"""

from collections import deque
from typing import Final, NamedTuple

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import DirectoryState, LoadState, Session
from dos_server.core.files.scan import VerifyGoal, beginning
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.reads import Reads
from dos_server.core.tables import Tables
from dos_server.limits import (
    scrub_first_seconds_max,
    scrub_load_seconds,
    scrub_rest_share,
    scrub_yield_seconds,
    scrub_yield_seconds_max,
)


class ScrubPlan(NamedTuple):
    """How to scrub. `bytes_per_s`: 0 disables it. `round_seconds_min`: from the begin of one round to that of
    the next. `start_fraction`: random number in [0, 1) that selects the first directory.
    """

    bytes_per_s: int = 0
    round_seconds_min: float = 0.0
    start_fraction: float = 0.0

    @property
    def first_seconds(self) -> float:
        return min(self.round_seconds_min, scrub_first_seconds_max)


NO_SCRUB: Final = ScrubPlan()


class Scrub:
    """The state of the scrub. `rounds`, `objects`, `bytes`, `damaged`: counts since the start."""

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
        self._bytes_per_s = plan.bytes_per_s
        self.rounds = self.objects = self.bytes = self.damaged = 0

    def request(self, session: Session, request: m.ScrubRequest, request_id: int) -> None:
        """Begin a round over everything, if that is requested, and report the progress."""
        if not self._plan.bytes_per_s:
            text = "the scrub of this server is off (--scrub-rate 0)"
            self._tables.refuse(session, ErrorCode.UNSUPPORTED, text, request_id)
            return
        if request.begin:
            # What an earlier round has verified does not count: the caller wants to know how the disk is now.
            self._left = deque(sorted(self._tables.directory_names))
            self._round_began = self._tables.now
            self._bytes_per_s = request.bytes_per_s or self._plan.bytes_per_s
            self._tables.effects.append(v.ScrubNow())
            self._tables.audit(session, "began a round of the scrub")
        left = len(self._left or ()) + (self._directory is not None)
        answer = m.ScrubProgress(self.rounds, self.objects, self.bytes, self.damaged, left)
        self._tables.send(session, answer, request_id)

    def due(self, event: v.ScrubDue) -> None:
        """Order the next read, or ask to be called again later; never both."""
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
        assert self._object is not None, "there is an object to verify"
        read = v.ScrubRead(directory.name, self._object.name, self._chain, self._goal)
        self._tables.effects.append(read)

    def read_done(self, event: v.ScrubReadDone) -> None:
        read = 0 if event.chain is None else event.chain.position - event.read.chain.position
        self.bytes += read
        state, self._object = self._object, None
        if state is not None and self._is_current(state):
            if event.damaged_at is not None:
                self._damaged(state, event.damaged_at, event.what)
            elif event.chain is None:
                self._log(f"{state.directory}/{state.name} was not scrubbed: {event.what}", bad=True)
            elif event.chain.offset < event.read.goal.size:
                self._object, self._chain = state, event.chain
            else:
                self.objects += 1
        self._later(max(read / self._bytes_per_s, event.seconds * scrub_rest_share))

    def _damaged(self, state: ObjectState, offset: int, what: str) -> None:
        self.damaged += 1
        self._reads.quarantine(state.directory, state.name, offset)
        self._log(
            f"scrub: {state.directory}/{state.name} is damaged from offset {offset} on: {what}", bad=True
        )

    def _is_current(self, state: ObjectState) -> bool:
        current = self._tables.find(state.directory, state.name)
        return current is state and state.exists and not state.damaged and state.changing is None

    def _later(self, seconds: float) -> None:
        self._tables.effects.append(v.ScrubLater(seconds))

    def _log(self, text: str, *, bad: bool) -> None:
        self._tables.effects.append(v.LogNotice(text, bad))

    # Rounds

    def _next_directory(self) -> bool:
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
        first = int(self._plan.start_fraction * len(names)) if self.rounds == 0 else 0
        self._left = deque(names[first:] + names[:first])
        self._round_began = self._tables.now

    def _end_round(self) -> None:
        self._left, self._bytes_per_s = None, self._plan.bytes_per_s
        self.rounds += 1
        took = self._tables.now - self._round_began
        self._log(
            f"scrub: {self.rounds} rounds since the start, the last took {took:.0f} s; {self.objects} objects"
            f" and {self.bytes} bytes verified, {self.damaged} objects found damaged",
            bad=False,
        )
        self._later(max(self._plan.round_seconds_min - took, scrub_load_seconds))

    def _loaded(self) -> DirectoryState | None:
        tables, name = self._tables, self._directory
        assert name is not None, "a directory was chosen"
        directory = tables.directories.get(name)
        if directory is None and self._loaded_it:  # it cannot be opened now: the next round tries again
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
        if self._names is None and self._loaded_it and rest > 0:
            # loading reads headers without a rate limit: pause in proportion to its duration
            self._names = deque(sorted(directory.objects))
            self._later(rest)
            return None
        return directory

    def _next_object(self, directory: DirectoryState) -> bool:
        if self._object is not None and self._is_current(self._object):
            return True
        if self._names is None:
            self._names = deque(sorted(directory.objects))
        while self._names:
            state = directory.objects.get(self._names.popleft())
            if state is not None and state.is_filed and state.synced and self._is_current(state):
                self._object, self._chain = state, beginning(state.root)
                self._goal = VerifyGoal(state.synced, state.synced_digest)
                return True
        return False

    def _leave(self, directory: DirectoryState) -> None:
        self._directory = self._object = self._names = self._tables.scrubbed = None
        if self._loaded_it and self._tables.is_idle(directory):
            self._tables.forget(directory)
