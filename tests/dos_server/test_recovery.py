"""Start-up.

The table has one row for every combination of facts, and no damage passes for less or for other bytes.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.files.findings import REPAIR, logged
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import (
    CASES,
    ExtentFacts,
    RecoveredObject,
    RecoveryCase,
    RecoveryDecision,
    Remainder,
    TailDamage,
    decide,
    recover,
)
from dos_server.core.files.scan import DamagedExtentError, SparseIndex, read_content

SEED = object_seed("dir", "obj")
ROOT = 0x0102_0304
TEXTS = [b"first record, ", b"the second one, " * 5, b"and a third\0with zeros\0in it" * 3]


def extents_of(
    texts: list[bytes], *, durable_lag: int = 1, seed: int = SEED, epoch: int = 1, root: int = ROOT
) -> list[bytes]:
    """The bytes of one extent per text; each knows all but the last `durable_lag` before it to be durable."""
    fold, out, ends, link = PrefixDigest(), [], [0], root
    for number, text in enumerate(texts):
        durable = ends[max(number - durable_lag, 0)]
        piece = AcceptedBytes(fold.size, fold.blocks_digest, text)
        ((_, buffers),) = build_extents([piece], seed=seed, epoch=epoch, durable=durable, link=link)
        link = link_after(buffers[0])
        out.append(b"".join(buffers))
        fold.update(text)
        ends.append(fold.size)
    return out


def recovered(file: bytes, mark: ObjectMark | None = None) -> RecoveredObject:
    return recover(lambda position, count: file[position : position + count], len(file), SEED, mark)


def served(file: bytes, found: RecoveredObject) -> bytes:
    """What GET would give after start-up: up to the good size, or up to damage it meets."""

    def read(position: int, count: int) -> bytes:
        return file[position : position + count]

    try:
        return read_content(read, SEED, found.index.find(0), 0, found.size)
    except DamagedExtentError as damage:
        return read_content(read, SEED, found.index.find(0), 0, damage.offset)


def test_exactly_one_row_for_every_combination_of_facts() -> None:
    letters = set()
    for remainder, damage, below, poisoned in itertools.product(
        Remainder, TailDamage, (False, True), (False, True)
    ):
        if (remainder is Remainder.BYTES) == (damage is TailDamage.NONE):
            continue  # only other bytes have a wound, and they always have one
        facts = ExtentFacts(remainder, damage, below, poisoned)
        letters.add(decide(facts).letter)
    assert letters == {case.letter for case in CASES}


def test_only_what_was_never_acknowledged_is_cut() -> None:
    for case in CASES:
        if case.decision in {RecoveryDecision.CUT, RecoveryDecision.COPY_CUT, RecoveryDecision.KEEP}:
            assert case.below == {False}, case.letter


@pytest.mark.parametrize("case", [case for case in CASES if case.decision is not RecoveryDecision.KEEP])
def test_a_start_logs_what_it_found_what_that_means_and_what_is_done(case: RecoveryCase) -> None:
    found = RecoveredObject(80, 120, PrefixDigest(), SparseIndex(), case.letter, case.decision)
    messages = logged("dir/obj", found, 500)
    assert messages.startswith("object dir/obj, byte 120 of 500 in its file: expected ")
    assert f"(case {case.letter})" in messages
    if found.corrupt:
        assert messages.endswith(f"It is CORRUPT from offset 80 on; {REPAIR}")
    else:
        aside = ", which are copied aside," if case.decision is RecoveryDecision.COPY_CUT else ""
        assert messages.endswith(f"None of it was acknowledged: 380 bytes{aside} are cut off; it ends at 80")


def test_a_start_does_not_log_that_it_cuts_where_nothing_is() -> None:
    found = RecoveredObject(80, 120, PrefixDigest(), SparseIndex(), "P", RecoveryDecision.COPY_CUT)
    assert logged("dir/obj", found, 120).endswith("(case P). Nothing needs to be cut off: it ends at 80")


WHOLE = b"".join(extents_of(TEXTS))
CONTENT = b"".join(TEXTS)


def test_a_crash_between_writes_and_sync_costs_only_what_was_not_acknowledged() -> None:
    # EVIDENCE-OF: P-1
    texts = [b"a" * 700, b"b" * 100, bytes(range(1, 256)) * 8]
    whole = b"".join(extents_of(texts))
    known, start = 800, 800 + 2 * 64
    for size in range(start, len(whole)):
        torn = [whole[:size]]
        if size % 512 == 0 or size == start:  # a sector that was never written reads as zeros
            torn.append(whole[:size] + bytes(len(whole) - size))
        for file in torn:
            found = recovered(file, ObjectMark("obj", known))
            assert (found.size, found.file_bytes, found.corrupt) == (known, start, False), f"torn at {size}"
            assert found.letter in "ABC"


def test_unsynced_extents_lost_out_of_order_are_a_torn_tail() -> None:
    first, second, third = extents_of([b"a" * 700, b"b" * 2000, b"c" * 900], durable_lag=3)
    file = first + bytes(len(second)) + third
    found = recovered(file, ObjectMark("obj", 700))
    assert (found.letter, found.size, found.file_bytes) == ("C", 700, len(first))
    holed = second[:512] + bytes(1024) + second[1536:]
    assert recovered(first + holed + third, ObjectMark("obj", 700)).letter == "C"


def test_an_extent_lost_before_one_that_knew_it_durable_is_damage() -> None:
    first, second, third = extents_of([b"a" * 700, b"b" * 2000, b"c" * 900], durable_lag=0)
    found = recovered(first + bytes(len(second)) + third, None)
    assert (found.letter, found.size) == ("I", 700)


def test_a_rotten_last_extent_is_never_taken_for_a_torn_one() -> None:
    file = bytearray(b"".join(extents_of([b"a" * 700, b"b" * 2000])))
    file[-7] ^= 4
    assert recovered(bytes(file), None).letter == "D"
    file[-7] ^= 4
    file[700 + 64 + 3] ^= 1
    assert recovered(bytes(file), None).letter == "D"


def test_blocks_of_another_place_time_or_object_are_damage() -> None:
    first, second, third = extents_of(TEXTS)
    assert recovered(first + first, None).letter == "E"
    assert recovered(first + third + second, None).letter == "E"
    foreign = extents_of(TEXTS, seed=object_seed("dir", "other"))
    found = recovered(b"".join(foreign), None)
    assert (found.size, found.corrupt) == (0, True)


def test_a_newer_version_is_left_alone() -> None:
    from dos_protocol.digests import digest64

    first, second, _ = extents_of(TEXTS)
    newer = bytearray(second)
    newer[2] = 9
    newer[56:64] = digest64(bytes(newer[:56]), SEED).to_bytes(8, "big")
    found = recovered(first + bytes(newer), None)
    assert (found.letter, found.size, found.decision) == ("F", len(TEXTS[0]), RecoveryDecision.QUARANTINE)


def test_after_a_failed_sync_the_cache_is_not_believed() -> None:
    known = len(TEXTS[0])
    found = recovered(WHOLE, ObjectMark("obj", known, poisoned=True))
    assert (found.letter, found.size, found.file_bytes) == ("P", known, 64 + known)
    assert found.fold.value == prefix_digest(TEXTS[0])
    assert recovered(WHOLE[:-3], ObjectMark("obj", known, poisoned=True)).letter == "P"
    assert recovered(WHOLE[:60], ObjectMark("obj", known, poisoned=True)).letter == "I"


def test_damage_found_while_the_digest_is_resumed_is_quarantined() -> None:
    texts = [bytes([n]) * 50_000 for n in range(1, 7)]
    file = bytearray(b"".join(extents_of(texts, durable_lag=0)))
    file[4 * 50_064 + 64 + 10] ^= 1
    found = recovered(bytes(file), ObjectMark("obj", 300_000))
    assert (found.letter, found.size, found.corrupt) == ("D", 200_000, True)
    assert served(bytes(file), found) == b"".join(texts[:4])


@given(
    sizes=st.lists(st.integers(1, 150_000), min_size=1, max_size=6),
    zeros=st.integers(0, 3000),
    ask=st.integers(0, 900_000),
)
def test_any_file_with_a_zero_tail_returns_whole_and_digests_any_prefix(
    sizes: list[int], zeros: int, ask: int
) -> None:
    from dos_server.core.files.scan import prefix_fold

    texts = [bytes([7 * n % 255 + 1]) * size for n, size in enumerate(sizes)]
    content, file = b"".join(texts), b"".join(extents_of(texts)) + bytes(zeros)
    found = recovered(file, None)
    assert found.letter == ("B" if zeros else "A")
    assert (found.size, found.fold.value) == (len(content), prefix_digest(content))
    at = min(ask, len(content))
    fold = prefix_fold(lambda p, n: file[p : p + n], SEED, found.index.fold_starts(at), at)
    assert fold.value == prefix_digest(content[:at])


@pytest.mark.parametrize("file", [b"", bytes(1), bytes(64), bytes(5000)])
def test_an_empty_or_zero_file_is_an_empty_object(file: bytes) -> None:
    found = recovered(file, None)
    assert (found.size, found.corrupt, found.file_bytes) == (0, False, 0)


@given(garbage=st.binary(max_size=300), keep=st.integers(0, 3))
def test_garbage_after_good_extents_never_raises_and_never_adds_a_byte(garbage: bytes, keep: int) -> None:
    file = b"".join(extents_of(TEXTS)[:keep]) + garbage
    found = recovered(file, None)
    assert CONTENT.startswith(served(file, found))
    assert found.size >= sum(map(len, TEXTS[:keep]))
