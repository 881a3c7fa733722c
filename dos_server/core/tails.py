"""Torn tails that found no room for their copy (row N of `recovery`): judged again when there is room.

So is an object that found no room to be written again in its place, as a start does with what no mark
vouches for, on file systems that want room for that; of such a one nothing is served before.

Until then the object is CORRUPT from there on: the tail may not be cut before a copy of it is on stable
storage, and nothing may be appended behind it. Nothing of it is damaged, though, so nobody has to mend it,
and nobody has to restart the server: the watch of the space looks each second anyhow.

Only the space counts that such a copy takes, not the reserve: a start would take it from there too. A try
that fails all the same (the quota of a user is in no figure) is followed by one after twice the time.

While an object is judged it is closed to everything, as while a new copy takes its place; then it stands
there like a mended one, and its writers are told to claim again and compare.

Rules of this file: when an object is judged again, and what comes of it. What it is, `storage` finds out.
"""

from dataclasses import dataclass

from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.core.claims import Claims
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.core.space import cost
from dos_server.core.tables import Tables
from dos_server.limits import tail_tries_seconds_max, tail_tries_seconds_min


@dataclass
class _Tail:
    """An object with such a tail; no try before `due`, and the one after it `wait_s` later."""

    state: ObjectState
    due: float
    wait_s: float = tail_tries_seconds_min


class Tails:
    """See the module."""

    def __init__(self, tables: Tables, claims: Claims) -> None:
        self._tables = tables
        self._claims = claims
        self._tails: dict[tuple[str, str], _Tail] = {}

    def directory_loaded(self, event: v.DirectoryLoaded) -> None:
        """Remember those of its objects that have such a tail."""
        for name, found in sorted(event.objects.items()):
            state = self._tables.find(event.directory, name)
            if found.uncut_bytes and state is not None:
                self._tails[event.directory, name] = _Tail(state, self._tables.now)

    def space_seen(self, event: v.SpaceSeen) -> None:
        """Have judged again what there is room for."""
        room = event.free_bytes
        for key, tail in list(self._tails.items()):
            state = tail.state
            if self._tables.find(*key) is not state:  # forgotten, mended, removed
                del self._tails[key]
                continue
            wanted = cost(state.uncut_bytes, new_file=True)
            fits = room >= wanted or event.total_bytes <= 0
            if not fits or tail.due > self._tables.now or state.changing is not None or state.tail_damaged:
                continue
            room -= wanted
            tail.due, tail.wait_s = (
                self._tables.now + tail.wait_s,
                min(tail.wait_s * 2, tail_tries_seconds_max),
            )
            state.judging = True
            self._tables.effects.append(v.LoadObject(*key))

    def object_loaded(self, event: v.ObjectLoaded) -> None:
        """It was judged again. None: nothing has become of it."""
        directory = self._tables.directories[event.directory]
        old = directory.objects[event.name]
        old.judging = False
        if event.found is not None and not event.found.uncut_bytes:
            del self._tails[event.directory, event.name]
            found = self._tables.found_object(directory.name, old.name, event.found, old.version + 1)
            self._replace(directory, old, found)
        self._claims.grant_if_ready(directory)

    def _replace(self, directory: DirectoryState, old: ObjectState, new: ObjectState) -> None:
        directory.objects[old.name] = new
        place = f"{directory.name}/{old.name}"
        if new.damaged:
            text = f"{place}: its torn tail was looked at again, and it is damaged from {new.corrupt_from} on"
            self._tables.effects.append(scrub_reads.LogNotice(text))
            return
        text = f"{place}: there was room to bring it in order; {new.synced} bytes of it are in use again"
        self._tables.effects.append(scrub_reads.LogNotice(text, bad=False))
        text = f"{old.name} is in use again: claim {directory.name} again, and compare"
        self._claims.end_writers(directory, text, directory.claim.epoch)
