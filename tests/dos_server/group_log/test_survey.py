"""Which records a start replays: after a clean end, a torn end, and damage to anything that was synced."""

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import CorruptDataError
from dos_server.core.files.log_record import (
    EntryKind,
    LogEntry,
    LogHeader,
    LogPlace,
    decode_header,
    encode_entry,
    encode_record,
    log_seed,
)
from dos_server.core.files.log_replay import FoundRecord, LogSurvey, SeenRecord, scan_slot, survey

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
