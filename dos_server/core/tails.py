"""Torn tails whose copy found no space (row N of `recovery`): judged again when there is space.

The same applies to an object that found no space to be rewritten in place. A start rewrites bytes beyond the
size in the mark, and some file systems need space for that. Nothing of such an object is served before.

Until then the object is CORRUPT from that offset on: the tail may not be cut before a copy of it is on stable
storage, and nothing may be appended after it. Nothing of the object is damaged, though, so no repair and no
restart is needed: free space is measured every second anyway.

Only the space for the copy counts, not the reserve: a start would use the reserve, too. If an attempt fails
although the space seemed sufficient (a user's quota is in no figure), the next one follows after twice the
time.

While an object is judged, no request can use it, as during a repair. Afterwards it counts like a repaired
object, and its writers receive FENCED: they claim again and compare sizes.

This part decides when an object is judged again, and handles the result. `storage` makes the judgment.
"""

from dataclasses import dataclass

from dos_server.core import scrub_reads
from dos_server.core import vocabulary as v
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.claims import Claims
from dos_server.core.space import cost
from dos_server.core.tables import Tables
from dos_server.limits import tail_tries_seconds_max, tail_tries_seconds_min


@dataclass
class _Tail:
    """An object with such a tail. Next attempt at `due` at the earliest, the following `wait_s` later."""

    state: ObjectState
    due: float
    wait_s: float = tail_tries_seconds_min


class Tails:
    """Schedules the renewed judgment of uncut tails."""

    def __init__(self, tables: Tables, claims: Claims) -> None:
        self._tables = tables
        self._claims = claims
        self._tails: dict[tuple[str, str], _Tail] = {}

    def directory_loaded(self, event: v.DirectoryLoaded) -> None:
        """Register the objects of the directory that have such a tail."""
        for name, found in sorted(event.objects.items()):
            state = self._tables.find(event.directory, name)
            if found.uncut_bytes and state is not None:
                self._tails[event.directory, name] = _Tail(state, self._tables.now)

    def space_seen(self, event: v.SpaceSeen) -> None:
        """Order a new judgment of each object for which there is space now."""
        free_bytes = event.free_bytes
        for key, tail in list(self._tails.items()):
            state = tail.state
            if self._tables.find(*key) is not state:  # forgotten, repaired or removed
                del self._tails[key]
                continue
            wanted = cost(state.uncut_bytes, new_file=True)
            fits = free_bytes >= wanted or event.total_bytes <= 0
            if not fits or tail.due > self._tables.now or state.changing is not None or state.tail_damaged:
                continue
            free_bytes -= wanted
            tail.due, tail.wait_s = (
                self._tables.now + tail.wait_s,
                min(tail.wait_s * 2, tail_tries_seconds_max),
            )
            state.judging = True
            self._tables.effects.append(v.LoadObject(*key))

    def object_loaded(self, event: v.ObjectLoaded) -> None:
        """Handle the result of a judgment. `found` is None if the object could not be judged."""
        directory = self._tables.directories[event.directory]
        old = directory.objects[event.name]
        old.judging = False
        if event.found is not None and not event.found.uncut_bytes:
            del self._tails[event.directory, event.name]
            found = self._tables.recovered_object(directory.name, old.name, event.found, old.version + 1)
            self._replace(directory, old, found)
        self._claims.grant_if_ready(directory)

    def _replace(self, directory: DirectoryState, old: ObjectState, new: ObjectState) -> None:
        """Replace the old object by the newly judged one, and end its writers."""
        directory.objects[old.name] = new
        self._tables.quotas.add(directory.name, new.accepted - old.accepted)
        path = f"{directory.name}/{old.name}"
        if new.damaged:
            text = f"{path}: its torn tail was judged again; it is damaged from offset {new.corrupt_from} on"
            self._tables.effects.append(scrub_reads.LogNotice(text))
            return
        text = f"{path}: recovered after space became free; {new.synced} bytes of it are in use again"
        self._tables.effects.append(scrub_reads.LogNotice(text, bad=False))
        text = f"{old.name} is in use again: claim {directory.name} again and compare its size and digest"
        self._claims.end_writers(directory, text, directory.claim.epoch)
