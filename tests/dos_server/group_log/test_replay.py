"""What a start does with the entries of one object: each rule of `replay`, and all short histories."""

from itertools import product

import pytest

from dos_server.core.files.log_record import EntryKind, LogEntry
from dos_server.core.files.log_replay import (
    NO_FILE,
    FileFacts,
    ObjectPlan,
    ReplayEntry,
    claim_to_store,
    plan_object,
)

OLD, NEW = 0x0A, 0x0B


def extents(position: int, end: int, root: int = OLD, *, lost: bool = False, count: int = 10) -> ReplayEntry:
    entry = LogEntry(EntryKind.EXTENTS, "d", "o", root, position, end, count)
    return ReplayEntry(entry, f"{root}:{position}", lost)


def bare(kind: EntryKind, root: int = OLD, position: int = 0, end: int = 0) -> ReplayEntry:
    return ReplayEntry(LogEntry(kind, "d", "o", root, position, end, 0), None)


CREATED, REMOVED = bare(EntryKind.CREATED), bare(EntryKind.REMOVED)
REPLACED = bare(EntryKind.REPLACED, OLD, NEW, 30)


def file(root: int, file_bytes: int = 10) -> FileFacts:
    return FileFacts(True, root, file_bytes)


@pytest.mark.parametrize(
    ("entries", "found", "plan"),
    [
        # rule 1
        ([extents(0, 5), REMOVED], file(OLD), ObjectPlan(remove=True)),
        ([REMOVED], file(0), ObjectPlan(remove=True)),
        ([REMOVED], file(0, 0), ObjectPlan(remove=True)),
        ([REMOVED], NO_FILE, ObjectPlan(remove=True)),
        ([REMOVED], file(NEW), ObjectPlan()),
        (
            [extents(0, 5), REMOVED, extents(0, 3, NEW)],
            file(OLD),
            ObjectPlan(remove=True, create=True, writes=((0, "11:0"),), synced=3, root=NEW),
        ),
        ([REMOVED, extents(0, 3, NEW)], file(NEW), ObjectPlan(writes=((0, "11:0"),), synced=3, root=NEW)),
        # rule 2
        ([extents(0, 5), REPLACED], file(OLD), ObjectPlan(writes=((0, "10:0"),), synced=5, root=OLD)),
        ([extents(0, 5), REPLACED], file(NEW, 30), ObjectPlan()),
        (
            [extents(0, 5), REPLACED, extents(30, 40, NEW)],
            file(NEW, 30),
            ObjectPlan(writes=((30, "11:30"),), synced=40, root=NEW),
        ),
        ([REPLACED, bare(EntryKind.REPLACED, NEW, 12, 40)], file(12, 40), ObjectPlan()),
        ([REPLACED, bare(EntryKind.REPLACED, NEW, 12, 40)], file(NEW, 30), ObjectPlan()),
        ([REMOVED, REPLACED], NO_FILE, ObjectPlan()),
        ([REPLACED], NO_FILE, ObjectPlan()),
        # rule 3
        ([CREATED], NO_FILE, ObjectPlan(create=True, synced=0, root=OLD)),
        ([CREATED], file(0, 0), ObjectPlan(synced=0, root=OLD)),
        (
            [CREATED, extents(0, 5)],
            NO_FILE,
            ObjectPlan(create=True, writes=((0, "10:0"),), synced=5, root=OLD),
        ),
        (
            [extents(0, 5), extents(10, 9)],
            file(0),
            ObjectPlan(
                aside=True, create=True, writes=((0, "10:0"), (10, "10:10")), synced=9, root=OLD
            ),
        ),
        (
            [extents(0, 5)],
            file(NEW),
            ObjectPlan(aside=True, create=True, writes=((0, "10:0"),), synced=5, root=OLD),
        ),
        # rule 4: what lies between two entries was written and synced directly
        (
            [extents(0, 5), extents(90, 99)],
            file(OLD, 100),
            ObjectPlan(writes=((0, "10:0"), (90, "10:90")), synced=99, root=OLD),
        ),
        ([extents(10, 9)], file(OLD, 10), ObjectPlan(writes=((10, "10:10"),), synced=9, root=OLD)),
        # rule 5: what is lost is not written, and the mark requires it
        ([extents(0, 5, lost=True)], file(OLD), ObjectPlan(synced=5, root=OLD)),
        ([extents(0, 5, lost=True)], NO_FILE, ObjectPlan(create=True, synced=5, root=OLD)),
    ],
)  # fmt: skip
def test_the_rules(entries: list[ReplayEntry], found: FileFacts, plan: ObjectPlan) -> None:
    assert plan_object(entries, found) == plan


@pytest.mark.parametrize(
    ("entries", "found", "why"),
    [
        ([extents(10, 9)], NO_FILE, "from byte 10 of a file with root 00000000"),
        ([extents(10, 9)], file(NEW), "from byte 10 of a file with root 0000000b"),
        ([extents(11, 9)], file(OLD, 10), "an entry from byte 11 of a file with 10 bytes"),
        ([extents(0, 5, lost=True), extents(10, 9)], file(OLD, 0), "from byte 10 of a file with 0 bytes"),
        ([extents(0, 5), extents(10, 9, NEW)], file(OLD), "two roots"),
        ([REPLACED, extents(30, 40, NEW)], file(OLD), "gave it root 0000000b, and the file has 0000000a"),
        ([extents(0, 5), REPLACED], NO_FILE, "gave it root 0000000b, and the file has 00000000"),
    ],
)
def test_what_no_crash_explains_is_damage_and_nothing_is_written(
    entries: list[ReplayEntry], found: FileFacts, why: str
) -> None:
    plan = plan_object(entries, found)
    assert why in plan.damage
    assert (plan.aside, plan.create, plan.writes) == (False, False, ())
    assert plan.synced == max(one.entry.end for one in entries)


def test_every_short_history_has_a_plan_that_requires_all_that_was_synced() -> None:
    steps = [extents(0, 5), extents(10, 9), extents(0, 3, NEW), CREATED, REMOVED, REPLACED]
    files = [NO_FILE, file(0, 0), file(0), file(OLD), file(NEW), file(NEW, 30)]
    for length in range(1, 5):
        for history, found in product(product(steps, repeat=length), files):
            plan = plan_object(history, found)
            kinds = [one.entry.kind for one in history]
            if kinds[-1] is EntryKind.EXTENTS:
                assert plan.synced is not None
                assert plan.synced >= history[-1].entry.end
            if kinds[-1] is EntryKind.REMOVED:
                assert plan.synced is None
                assert plan.remove == (found.root in (OLD, 0))
            assert not (plan.damage and plan.writes)


def test_the_highest_claim_is_stored_unless_the_directory_has_it() -> None:
    def claim(epoch: int, *, lost: bool = False) -> ReplayEntry:
        return ReplayEntry(LogEntry(EntryKind.CLAIM, "d", "", 0, 0, epoch, 36), epoch, lost)

    assert claim_to_store([claim(3), claim(5), claim(4)], 4) == claim(5)
    assert claim_to_store([claim(3), claim(5, lost=True)], 5) is None
    assert claim_to_store([claim(3), claim(5, lost=True)], 4) == claim(5, lost=True)
    assert claim_to_store([claim(5, lost=True), claim(5)], 4) == claim(5)
    assert claim_to_store([], 4) is None
