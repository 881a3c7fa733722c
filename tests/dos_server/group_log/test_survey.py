"""Which records a start replays: after a clean end, a torn end, and damage to anything that was synced."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import CorruptDataError
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    EntryKind,
    LogEntry,
    LogHeader,
    LogPlace,
    decode_header,
    encode_entry,
    encode_record,
    log_seed,
)
from dos_server.core.files.log_replay import (
    NO_FILE,
    FileFacts,
    FoundRecord,
    Life,
    LiveRecord,
    LogState,
    LogSurvey,
    ObjectPlan,
    RecordPlace,
    ReplayEntry,
    SeenRecord,
    claim_to_store,
    decode_life,
    decode_seen,
    encode_life,
    plan_object,
    scan_slot,
    survey,
)

SLOT_BYTES = 256 * 1024
SEED = log_seed(b"k" * 16)


class Written:
    """A log of one slot, as a server writes it. `records`: headers and entries, in order."""

    def __init__(self, sizes: Sequence[int], *, start: int = 1, first: int = 1, rng: Random) -> None:
        self.data = bytearray(SLOT_BYTES)
        self.records: list[tuple[int, LogHeader, tuple[LogEntry, ...], bytes]] = []
        before: list[bytes] = []
        digest, offset = 0, 0
        for number, size in enumerate(sizes):
            content = rng.randbytes(size)
            kind = EntryKind.EXTENTS if size else EntryKind.CREATED
            entry = LogEntry(kind, "dir", f"o{number}", 7, 0, size, size)
            place = LogPlace(start, 1, number + 1, 1, first, digest)
            own = [encode_entry(entry)]
            data, digest = encode_record(place, own, [content], before, SEED)
            header, before = decode_header(data, SEED), own
            assert isinstance(header, LogHeader)
            self.data[offset : offset + len(data)] = data
            self.records.append((offset, header, (entry,), content))
            offset += len(data)

    def found(self) -> list[FoundRecord]:
        return list(scan_slot(lambda at, count: bytes(self.data[at : at + count]), 0, SLOT_BYTES, SEED))

    def seen(self, number: int) -> SeenRecord:
        return SeenRecord(self.records[number][1], self.records[number][2])

    def survey(self, seen: int | None = None, starts: int = 1) -> LogSurvey:
        return survey(self.found(), None if seen is None else self.seen(seen), starts)

    def damage(self, number: int, part: str, rng: Random) -> None:
        """Flip a bit in a part of a record."""
        offset, header, _, _ = self.records[number]
        begin, count = {
            "header": (0, 88),
            "table": (88, header.table_bytes),
            "content": (88 + header.table_bytes, header.content_bytes),
        }[part]
        self.data[offset + begin + rng.randrange(count)] ^= 1 << rng.randrange(8)


sizes = st.lists(st.integers(min_value=0, max_value=9_000), min_size=1, max_size=12)
randoms = st.randoms(use_true_random=False)


@given(sizes, randoms, st.data())
def test_everything_from_the_first_live_record_on_is_replayed(
    sizes: list[int], rng: Random, data: st.DataObject
) -> None:
    first = data.draw(st.integers(min_value=1, max_value=len(sizes)))
    log = Written(sizes, first=first, rng=rng)
    result = log.survey(data.draw(st.sampled_from([None, *range(len(sizes))])))
    assert [one.sequence for one in result.records] == list(range(first, len(sizes) + 1))
    for one in result.records:
        offset, header, entries, content = log.records[one.sequence - 1]
        assert one.place is not None
        assert (one.place.offset, one.entries) == (offset, entries)
        at = offset + 88 + header.table_bytes
        assert log.data[at : at + header.content_bytes] == content
    assert result.next_sequence == len(sizes) + 1


@given(sizes, randoms, st.sampled_from(["header", "table", "content"]))
def test_a_torn_last_record_that_was_never_synced_is_no_record(
    sizes: list[int], rng: Random, part: str
) -> None:
    log = Written([*sizes, 100], rng=rng)
    log.damage(len(sizes), part, rng)
    result = log.survey(len(sizes) - 1)
    assert [one.sequence for one in result.records] == list(range(1, len(sizes) + 1))
    assert all(one.place is not None for one in result.records)
    # what is seen of it is not used again, and what is not seen cannot come back
    assert result.next_sequence == len(sizes) + (1 if part == "header" else 2)


@given(sizes, randoms, st.sampled_from(["header", "table", "content"]), st.data())
def test_damage_to_one_synced_record_names_the_objects_that_were_in_it(
    sizes: list[int], rng: Random, part: str, data: st.DataObject
) -> None:
    sizes = [size or 1 for size in sizes]
    log = Written(sizes, rng=rng)
    number = data.draw(st.integers(min_value=0, max_value=len(sizes) - 1))
    log.damage(number, part, rng)
    result = log.survey(len(sizes) - 1)  # the last one was seen: it was synced, too
    assert [one.sequence for one in result.records] == list(range(1, len(sizes) + 1))
    damaged = [one for one in result.records if one.place is None]
    assert [one.sequence for one in damaged] == [number + 1]
    assert damaged[0].entries == log.records[number][2]


@given(sizes, randoms)
def test_damage_to_two_records_in_succession_refuses_the_start_unless_their_tables_are_there(
    sizes: list[int], rng: Random
) -> None:
    log = Written([1, 1, *sizes, 1, 1], rng=rng)
    for number in (1, 2):
        log.damage(number, "header", rng)
    with pytest.raises(CorruptDataError, match="record 2 of the group log"):
        log.survey(len(log.records) - 1)


@given(sizes, randoms)
def test_records_of_two_histories_are_not_put_together(sizes: list[int], rng: Random) -> None:
    one, other = (Written([20, *sizes], rng=Random(seed)) for seed in (1, 2))
    cut = rng.randint(1, len(sizes))
    with pytest.raises(CorruptDataError, match=f"record {cut + 1} of the group log.*one that follows"):
        survey([*one.found()[:cut], *other.found()[cut:]], None, 1)


STATES = ("valid", "content", "table", "header")


def expected_rows(states: Sequence[str], seen: int | None) -> str:
    """Return the row of each record in the table of `survey`, independently of it; "" if it is refused."""
    known = [number for number, state in enumerate(states) if state == "valid"]
    last = max([*known, *([] if seen is None else [seen])], default=-1)
    rows = ""
    for number, state in enumerate(states):
        follows = number + 1 < len(states) and states[number + 1] in ("valid", "content")
        if number > last:
            rows += "F"
        elif state in ("valid", "content"):
            rows += "A" if state == "valid" else "B"
        elif follows:
            rows += "C"
        elif number == seen:
            rows += "D"
        else:
            return ""
    return rows


@pytest.mark.parametrize("seen", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("first_two", list(product(STATES, STATES)), ids="-".join)
def test_every_combination_of_damage_is_in_one_row(first_two: tuple[str, str], seen: int | None) -> None:
    # EVIDENCE-OF: P-2
    for states in product(*([one] for one in first_two), STATES, STATES):
        rng = Random(str(states))
        log = Written([10, 5_000, 0, 300], rng=rng)
        for number, state in enumerate(states):
            if state == "content" and number == 2:
                log.data[log.records[2][0] + 72] ^= 1  # it has no contents: another digest of them
                log.damage(2, "header", rng)
            elif state != "valid":
                log.damage(number, state, rng)
        states = tuple(
            "header" if (number, state) == (2, "content") else state for number, state in enumerate(states)
        )
        expected = expected_rows(states, seen)
        if not expected:
            with pytest.raises(CorruptDataError, match="nothing that tells its entries"):
                log.survey(seen)
            continue
        result = log.survey(seen)
        assert "".join(one.letter for one in result.records) == expected.rstrip("F"), (states, seen)
        for one in result.records:
            assert one.entries == log.records[one.sequence - 1][2]
            assert (one.place is not None) is (one.letter == "A")


def test_a_seen_record_without_the_record_is_damage_and_not_an_empty_log() -> None:
    rng = Random(1)
    log = Written([10, 10], rng=rng)
    seen = log.seen(1)
    assert survey([], None, 1) == LogSurvey((), None, 1, 1)
    with pytest.raises(CorruptDataError):
        survey([], seen, 1)


def test_records_of_earlier_starts_are_obsolete_and_of_later_ones_refused() -> None:
    rng = Random(2)
    older, newer = Written([10, 20, 30], rng=rng), Written([40], start=2, rng=rng)
    found = [*older.found(), *(one._replace(place=one.place._replace(slot=1)) for one in newer.found())]
    result = survey(found, older.seen(2), 2)
    assert [one.entries for one in result.records] == [newer.records[0][2]]
    assert result.next_sequence == 4
    with pytest.raises(CorruptDataError, match="records of at most 1 starts"):
        survey(found, None, 1)


def test_a_record_inside_of_contents_is_none() -> None:
    """A client may send the bytes of a record, if it knew the key; a scan steps over contents."""
    rng = Random(3)
    place = LogPlace(9, 9, 99, 9, 99, 0)
    forged, _ = encode_record(place, [], [], [], SEED)
    log = Written([1], rng=rng)
    entry = LogEntry(EntryKind.EXTENTS, "d", "o", 7, 0, 8, 3 * len(forged))
    data, _ = encode_record(LogPlace(1, 1, 1, 1, 1, 0), [encode_entry(entry)], [forged * 3], [], SEED)
    log.data[: len(data)] = data
    assert [one.header.sequence for one in log.found()] == [1]


# --- What a start does with the entries of one object: each rule of `replay`, and all short histories ------


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


# --- The small files of the log: every flipped bit and every cut of `seen` is noticed ----------------------


KEY = bytes(range(16))
LIFE_SEED = log_seed(KEY)


@pytest.mark.parametrize("state", LogState)
def test_life_survives_its_bytes(state: LogState) -> None:
    assert decode_life(encode_life(Life(7, state, KEY))) == Life(7, state, KEY)


def test_seen_is_whole_or_ignored() -> None:
    entry = LogEntry(EntryKind.EXTENTS, "d", "o", 7, 0, 9, 9)
    own = encode_entry(entry)
    record, _ = encode_record(LogPlace(1, 1, 1, 1, 1, 0), [own], [bytes(9)], [], LIFE_SEED)
    seen = bytes(record[: 88 + len(own)])
    found = decode_seen(seen, LIFE_SEED)
    assert found is not None
    assert (found.header, found.entries) == (decode_header(record, LIFE_SEED), (entry,))
    assert decode_seen(seen + bytes(500), LIFE_SEED) == found, "a longer one was there before"
    for bit in range(8 * len(seen)):
        flipped = bytearray(seen)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_seen(bytes(flipped), LIFE_SEED) is None
    for size in range(len(seen)):
        assert decode_seen(seen[:size], LIFE_SEED) is None
    assert decode_seen(None, LIFE_SEED) is None
    assert decode_seen(seen, LIFE_SEED + 1) is None


# --- The log of the first release that had one stays readable: a slot, the file `life` and the file ... ----


GOLDEN = Path(__file__).parent / "golden"
SLOT, LIFE, SEEN = (GOLDEN / name for name in ("slot-v1.bin", "life-v1.bin", "seen-v1.bin"))
ENTRIES = (
    (LogEntry(EntryKind.CREATED, "app.w0000", "empty", 7, 0, 0, 0), b""),
    (LogEntry(EntryKind.CLAIM, "app.w0000", "", 0, 0, 3, 36), bytes(36)),
), (
    (LogEntry(EntryKind.EXTENTS, "app.w0000", "steps", 9, 0, 11, 75), b"x" * 75),
    (LogEntry(EntryKind.EXTENTS, "app.w0001", "steps", 10, 640, 512, 5), b"bytes"),
), (
    (LogEntry(EntryKind.REMOVED, "app.w0000", "empty", 7, 0, 0, 0), b""),
    (LogEntry(EntryKind.REPLACED, "app.w0001", "steps", 10, 11, 512, 0), b""),
)  # fmt: skip


def written() -> tuple[bytes, bytes]:
    """Return the slot and `seen` as this release writes them."""
    seed, before, digest, slot, seen = log_seed(KEY), list[bytes](), 0, b"", b""
    for sequence, entries in enumerate(ENTRIES, start=41):
        place = LogPlace(5, 8, sequence, 8, 41, digest)
        own = [encode_entry(one) for one, _ in entries]
        record, digest = encode_record(place, own, [content for _, content in entries], before, seed)
        seen, before = bytes(record[: HEADER_BYTES + len(b"".join((*own, *before)))]), own
        slot += record
    return slot + bytes(8192), seen


def test_the_golden_log_is_read() -> None:
    slot, seed = SLOT.read_bytes(), log_seed(decode_life(LIFE.read_bytes()).key)
    found = list(scan_slot(lambda at, count: slot[at : at + count], 2, len(slot), seed))
    assert all(one.valid for one in found)
    seen = decode_seen(SEEN.read_bytes(), seed)
    assert seen is not None
    assert seen.header == found[-1].header
    result = survey(found, seen, 5)
    assert result.records == tuple(
        LiveRecord(41 + index, tuple(one for one, _ in entries), RecordPlace(2, 4096 * index), "A")
        for index, entries in enumerate(ENTRIES)
    )
    assert (result.next_segment, result.next_sequence) == (9, 44)


def test_this_release_writes_the_same_bytes() -> None:
    assert written() == (SLOT.read_bytes(), SEEN.read_bytes())
    assert encode_life(Life(5, LogState.IN_USE, KEY)) == LIFE.read_bytes()
