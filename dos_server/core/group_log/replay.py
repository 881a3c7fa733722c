"""What a start does with the entries of one object, and of one claim.

Entries are of one object, in the order of the log. `lost`: the contents of the entry are damaged; what it
says about names, roots and sizes is known.

    1  Entries before the last REMOVED are void. The removal is finished: a file with the removed root, or
       with an unreadable head, is removed. A file of another root was created later.
    2  After REPLACED, with the new root in the file, only later entries count. With the old root there and no
       later entries, the repair had not begun to change names: entries before it count. The same if there
       is no file and was none: whether that is damage, its mark says.
    3  Entries from position 0 on: a file that begins with another root, or with no valid header, is put
       aside, and the object is created anew.
    4  Entries from above 0: the file must have their root, and no byte below them may be missing. Otherwise
       the object is damaged, and nothing is written.
    5  Every entry that is left is written, never compared: after a failed sync the cache shows what the disk
       lacks. Lost entries cannot be written; whether the file has their bytes shows the size that the mark
       requires, by the table of `recovery`.

Afterwards the mark requires the end of the last entry. Nothing is ever cut here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dos_server.core.files.log_record import EntryKind, LogEntry


class ReplayEntry(NamedTuple):
    """An entry, and a reference to its contents that the shell understands; `lost`: they are damaged."""

    entry: LogEntry
    content: object
    lost: bool = False


class FileFacts(NamedTuple):
    """The file of an object. `root`: of its first extent; if that has no valid header, the one that its mark
    names, or 0.
    """

    exists: bool
    root: int
    file_bytes: int


NO_FILE = FileFacts(exists=False, root=0, file_bytes=0)


class ObjectPlan(NamedTuple):
    """What to do, in this order. `remove`: the file and its mark. `aside`: move the file aside. `create`: an
    empty file if there is none. `writes`: (position, content). `synced`: the size that its mark requires;
    None if there is no object afterwards. `damage`: why the object is damaged, or "".
    """

    remove: bool = False
    aside: bool = False
    create: bool = False
    writes: tuple[tuple[int, object], ...] = ()
    synced: int | None = None
    root: int = 0
    damage: str = ""


def plan_object(entries: Sequence[ReplayEntry], file: FileFacts) -> ObjectPlan:
    """Return what a start does with the entries of one object."""
    removed, left = _after_removal(entries)
    remove = removed is not None and file.exists and file.root in (removed.root, 0)
    if remove:
        file = NO_FILE
    gone = removed is not None and not file.exists and not left
    left, damage = _after_replacement(left, file)
    if not left and not damage:
        return ObjectPlan(remove=remove or gone)
    synced = max((one.entry.end for one in left), default=0)
    root = left[0].entry.root if left else file.root
    if damage:
        return ObjectPlan(remove, synced=synced, root=root, damage=damage)
    if any(one.entry.root != root for one in left):
        return ObjectPlan(remove, synced=synced, root=root, damage="entries of two roots without a removal")
    begins = left[0].entry.position
    aside = begins == 0 and file.file_bytes > 0 and file.root != root
    if begins > 0 and file.root != root:
        text = f"entries of root {root:08x} from byte {begins} of a file with root {file.root:08x}"
        return ObjectPlan(remove, synced=synced, root=root, damage=text)
    size = 0 if aside else file.file_bytes
    writes = []
    for entry, content, lost in left:
        if entry.position > size:
            text = f"an entry from byte {entry.position} of a file with {size} bytes"
            return ObjectPlan(remove, synced=synced, root=root, damage=text)
        if not lost:
            size = max(size, entry.position + entry.content_bytes)
            if entry.content_bytes:
                writes.append((entry.position, content))
    create = begins == 0 and (aside or not file.exists)
    return ObjectPlan(remove, aside, create, tuple(writes), synced, root)


def _after_removal(entries: Sequence[ReplayEntry]) -> tuple[LogEntry | None, list[ReplayEntry]]:
    last, left = None, list[ReplayEntry]()
    for one in entries:
        if one.entry.kind is EntryKind.REMOVED:
            last, left = one.entry, []
        else:
            left.append(one)
    return last, left


def _after_replacement(entries: list[ReplayEntry], file: FileFacts) -> tuple[list[ReplayEntry], str]:
    """Return the entries that count, and why the object is damaged."""
    places = [index for index, one in enumerate(entries) if one.entry.kind is EntryKind.REPLACED]
    if not places:
        return entries, ""
    replaced = entries[places[-1]].entry
    before, after = entries[: places[-1]], entries[places[-1] + 1 :]
    if file.root == replaced.position:
        return after, ""
    if file.root == replaced.root and not after:
        kept = [one for one in before if one.entry.kind is not EntryKind.REPLACED]
        return kept, ""
    if not file.exists and not before and not after:
        return [], ""
    text = f"a repair gave it root {replaced.position:08x}, and the file has {file.root:08x}"
    return [*after, entries[places[-1]]], text


def claim_to_store(entries: Sequence[ReplayEntry], held_epoch: int) -> ReplayEntry | None:
    """Return the claim that the claim file must get, None if it holds it or a later one. If the one that is
    returned is lost, the start must be refused: the directory could not fence its earlier writers.
    """
    highest = max(entries, key=lambda one: (one.entry.end, not one.lost), default=None)
    return highest if highest is not None and highest.entry.end > held_epoch else None
