"""Extents, the index, and the small records.

Bytes and back, against the specification, every damage named.
"""

import itertools
import random
from collections.abc import Iterator

import pytest
from construct import ConstructError
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, digest64, prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core.files import records
from dos_server.core.files.extent import (
    AcceptedBytes,
    ExtentHeader,
    HeaderFault,
    build_extents,
    decode_header,
    decode_linked,
    encode_header,
    object_seed,
    steps_in,
)
from dos_server.core.files.records import decode_marks
from dos_server.core.files.scan import ExtentStart, SparseIndex
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.limits import extent_payload_bytes_max, index_entries_max
from tests.dos_protocol.strategies import good_names, ids, u64
from tests.dos_server.core_requests import claimed
from tests.dos_server.test_recovery import extents_of
from tests.specifications.extents import ClaimSpec, MarkSpec, extent_spec
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk

SEED = object_seed("dir", "obj")
u32 = st.integers(0, 2**32 - 1)


@st.composite
def headers(draw: st.DrawFn) -> ExtentHeader:
    offset = draw(u64)
    return ExtentHeader(
        draw(st.integers(1, extent_payload_bytes_max)),
        offset,
        draw(u64),
        draw(st.integers(0, offset)),
        draw(u64),
        draw(u64),
        draw(u32),
    )


@given(header=headers(), directory=good_names, name=good_names)
def test_a_header_survives_its_bytes_under_its_own_name_only(
    header: ExtentHeader, directory: str, name: str
) -> None:
    data = encode_header(header, object_seed(directory, name))
    assert decode_header(data, object_seed(directory, name)) == header
    assert decode_header(data, object_seed(directory, name + "x")) is HeaderFault.DIGEST


@given(
    found=st.lists(headers(), max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2),
    ends=st.integers(0, 400),
)
def test_a_quick_walk_accepts_the_headers_that_decoding_them_one_by_one_accepts(
    found: list[ExtentHeader], damage: list[tuple[int, int]], ends: int
) -> None:
    data = bytearray()
    for header in found:
        small = header._replace(payload_bytes=header.payload_bytes % 40 + 1)
        data += encode_header(small, SEED) + bytes(small.payload_bytes)
    for place, value in damage:
        if place < len(data):
            data[place] = value
    data = data[: max(len(data) - ends, 0)] if ends < 100 else data
    expected, position = [], 0
    while position + 64 <= len(data):
        decoded = decode_linked(data, SEED, position)
        if isinstance(decoded, HeaderFault):
            break
        header, link = decoded
        count = header.payload_bytes
        expected.append((*header[:1], header.link, *header[1:4], header.payload_digest, link))
        position += 64 + count
    assert list(steps_in(bytes(data), SEED)) == expected


@pytest.mark.parametrize(("place", "value"), [*((one, 0xFF) for one in range(9)), (11, 0), (39, 6)])
def test_a_quick_walk_stops_at_a_header_that_is_digested_and_not_of_this_version(
    place: int, value: int
) -> None:
    data = bytearray(encode_header(ExtentHeader(9, 5, 1, 5, 0, 0, 7), SEED) + bytes(9))
    assert len(list(steps_in(bytes(data), SEED))) == 1
    data[place] = value
    data[56:64] = digest64(bytes(data[:56]), SEED).to_bytes(8, "big")
    assert isinstance(decode_header(data, SEED), HeaderFault)
    assert list(steps_in(bytes(data), SEED)) == []


@given(header=headers(), bit=st.integers(0, 511))
def test_a_flipped_bit_in_a_header_is_seen(header: ExtentHeader, bit: int) -> None:
    data = bytearray(encode_header(header, SEED))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_header(data, SEED) is HeaderFault.DIGEST


def test_a_newer_version_and_impossible_fields_are_reported_from_damage() -> None:
    good = bytearray(encode_header(ExtentHeader(5, 10, 3, 7, 1, 2, 3), SEED))
    for place, value in ((2, 2), (3, 1), (5, 1), (7, 1)):
        data = bytearray(good)
        data[place] = value
        data[56:] = digest64(bytes(data[:56]), SEED).to_bytes(8, "big")
        assert decode_header(data, SEED) is HeaderFault.FORMAT
    for header in (ExtentHeader(0, 10, 3, 7, 1, 2, 3), ExtentHeader(5, 10, 3, 11, 1, 2, 3)):
        assert decode_header(encode_header(header, SEED), SEED) is HeaderFault.FORMAT


def test_zeros_are_never_a_header() -> None:
    assert decode_header(bytes(64), SEED) is HeaderFault.DIGEST
    assert decode_header(bytes(64), 0) is HeaderFault.DIGEST


@given(
    sizes=st.lists(st.integers(1, 90_000), min_size=1, max_size=8),
    epoch=u64,
    start=st.integers(0, 2**40),
    link=u32,
)
def test_adjacent_appends_share_extents_and_the_specification_reads_them(
    sizes: list[int], epoch: int, start: int, link: int
) -> None:
    fold = PrefixDigest(start - start % 65_536, 7)
    fold.update(bytes(start % 65_536))
    begin = fold.size
    pieces = []
    for number, size in enumerate(sizes):
        data = bytes([number + 1]) * size
        pieces.append(AcceptedBytes(fold.size, fold.blocks_digest, data))
        fold.update(data)
    extents = list(build_extents(pieces, seed=SEED, epoch=epoch, durable=begin, link=link))
    offset, content = begin, b""
    for header, buffers in extents:
        data = b"".join(buffers)
        parsed = extent_spec("dir", "obj").parse(data)
        value = parsed.head.value
        assert (value.offset, value.epoch, value.durable) == (offset, epoch, begin)
        assert (value.prefix_digest, value.link) == (header.prefix_digest, link)
        link = int.from_bytes(data[60:64], "big")
        assert len(data) == 64 + header.payload_bytes
        offset = header.end
        content += parsed.payload
    assert content == b"".join(piece.data for piece in pieces)
    joined = sum(sizes) // extent_payload_bytes_max
    assert len(extents) <= 2 * joined + 1


def test_an_extent_holds_at_most_256_kib() -> None:
    pieces = [AcceptedBytes(i * 65_536, 0, bytes(65_536)) for i in range(9)]
    counts = [header.payload_bytes for header, _ in build_extents(pieces, seed=1, epoch=0, durable=0, link=1)]
    assert counts == [262_144, 262_144, 65_536]


@given(epoch=u64, writer_id=ids)
def test_a_claim_survives_its_bytes_and_the_specification_reads_them(epoch: int, writer_id: bytes) -> None:
    data = records.encode_claim(records.ClaimRecord(epoch, writer_id))
    assert records.decode_claim(data, "x") == records.ClaimRecord(epoch, writer_id)
    parsed = ClaimSpec.parse(data).body.value
    assert (parsed.epoch, parsed.writer_id) == (epoch, writer_id)


@given(name=good_names, synced=u64, poisoned=st.booleans(), root=u32, bit=st.integers(0, 256 * 8 - 1))
def test_a_mark_survives_its_bytes_and_a_damaged_one_says_nothing(
    name: str, synced: int, poisoned: bool, root: int, bit: int
) -> None:
    mark = records.ObjectMark(name, synced, poisoned, root=root)
    data = records.encode_mark(mark)
    assert records.decode_marks(data + data[:100]) == [mark]
    parsed = MarkSpec.parse(data).body.value
    assert (parsed.name.rstrip(b"\0").decode(), parsed.synced, parsed.flags) == (name, synced, poisoned)
    assert parsed.root == root
    bad = bytearray(data)
    bad[bit // 8] ^= 1 << bit % 8
    assert records.decode_marks(bytes(bad) + data) == [None, mark]
    with pytest.raises(ConstructError):
        MarkSpec.parse(bytes(bad))


@given(
    sizes=st.lists(st.integers(1, 400_000), max_size=40),
    ask=st.integers(0, 16_000_000),
    cut=st.integers(0, 16_000_000),
)
def test_the_index_finds_an_extent_at_or_before(sizes: list[int], ask: int, cut: int) -> None:
    index, offset, position, starts = SparseIndex(), 0, 0, [ExtentStart(0, 0)]
    for size in sizes:
        starts.append(ExtentStart(offset, position, len(starts)))
        index.add(offset, position, len(starts) - 1)
        offset, position = offset + size, position + size + 64
    found = index.find(ask)
    assert found in starts
    assert found.offset <= ask or found == ExtentStart(0, 0)
    index.cut(cut)
    kept = index.find(2**63)
    assert kept in starts
    assert kept.offset < max(cut, 1)


def test_the_index_stays_bounded_however_large_the_object() -> None:
    # EVIDENCE-OF: P-9
    index = SparseIndex()
    for number in range(100_000):
        index.add(number * 262_144, number * 262_208, number)
    assert len(index) <= index_entries_max
    for ask in (0, 5_000_000, 13_000_000_000, 26_000_000_000):
        place = index.find(ask)
        assert place.offset <= ask
        assert place.position == place.offset // 262_144 * 262_208
        assert place.link == place.offset // 262_144
        assert ask - place.offset <= 100_000 * 262_144 // (index_entries_max // 4)


def test_the_digest_of_the_example_in_protocol_md() -> None:
    assert prefix_digest(b"") == 0
    assert object_seed("dir", "obj") == digest64(b"dir/obj")


def kept_in(index: SparseIndex, end: int) -> list[int]:
    """The offsets that the index holds, below the end."""
    return sorted({index.find(offset).offset for offset in range(0, end, 2_048)})


def test_the_index_keeps_extents_that_start_one_spacing_apart_and_doubles_it_when_full() -> None:
    spacing = 4_096
    index = SparseIndex()
    for start in (0, spacing - 1, spacing, 2 * spacing - 1, 2 * spacing):
        index.add(start, start + 7, 1)
    assert [*map(index.find, (spacing - 1, spacing, 2 * spacing - 1, 2 * spacing))] == [
        ExtentStart(0, 7, 1), ExtentStart(spacing, spacing + 7, 1), ExtentStart(spacing, spacing + 7, 1),
        ExtentStart(2 * spacing, 2 * spacing + 7, 1),
    ]  # fmt: skip
    index = SparseIndex()
    for doubled in range(3):
        end = index_entries_max * spacing << doubled
        for start in range(0 if doubled == 0 else end // 2, end, spacing):
            index.add(start, start, 1)
        assert kept_in(index, end) == [*range(0, end, spacing << doubled)]
    index.add(end, end, 1)
    assert kept_in(index, end + 1) == [*range(0, end + 1, spacing << 3)]


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=40), st.data())
def test_a_cut_forgets_what_starts_at_or_after_it_and_nothing_else(
    steps: list[int], data: st.DataObject
) -> None:
    index, starts = SparseIndex(), [0, *itertools.accumulate(steps)]
    for start in starts:
        index.add(start, start, 1)
    before = kept_in(index, starts[-1] + 1)
    cut = data.draw(st.sampled_from([one + by for one in before for by in (-1, 0, 1) if one + by >= 0]))
    index.cut(cut)
    assert len(index) == sum(one < cut for one in before)
    assert all(index.find(one).offset == one for one in before if one < cut)


# --- Row 12: blocks that a disk gives back at the wrong place, twice, or from another time -----------------


BLOCK = 4_096
SIZES = [100, 1_000, 64, 4_096, 700, 9_000, 30, 30, 30, 5_000, 4_032, 4_032, 200, 20_000, 1]
PATH = "d/dir/o"


def parts(kind: int) -> list[bytes]:
    """Other bytes for each kind, of the same sizes."""
    rng = random.Random(kind)
    return [rng.randbytes(size) for size in SIZES]


def appended(server: Harness, session: int, texts: list[bytes]) -> bytes:
    """Each text an append and an extent of its own."""
    content = b""
    for text in texts:
        server.ask(session, m.Append("o", len(content), prefix_digest(content), text))
        content += text
    if texts:
        assert server.unasked(session, m.DurabilityAck)[-1].synced == len(content)
    return content


def two_lives() -> tuple[Harness, int, bytes, bytes]:
    """An object that was removed and made again, of the same sizes: server, session, the file it had first,
    and what it has now."""
    server = Harness(FakeDisk())
    session = claimed(server)
    appended(server, session, parts(1))
    old = server.disk.content(PATH)
    assert isinstance(server.ask(session, m.Delete("o")), m.Deleted)
    content = appended(server, session, parts(2))
    assert len(server.disk.content(PATH)) == len(old)
    return server, session, old, content


def starts() -> Iterator[tuple[int, int]]:
    """Where extents begin and end in the file."""
    position = 0
    for size in SIZES:
        yield position, position + 64 + size
        position += 64 + size


def damaged_files(old: bytes, new: bytes) -> Iterator[tuple[str, bytes]]:
    """The file with whole extents and blocks of the earlier life, and with blocks in each other's place."""
    for number, (start, end) in enumerate(starts()):
        yield f"extent {number} of the earlier life", new[:start] + old[start:end] + new[end:]
    blocks = range(0, len(new), BLOCK)
    for start in blocks:
        end = start + BLOCK
        yield f"block {start} of the earlier life", new[:start] + old[start:end] + new[end:]
        yield f"block {start} as it was before it was written", new[:start] + bytes(BLOCK) + new[end:]
        for other in blocks:
            if other != start and len(new) - max(start, other) >= BLOCK:
                misdirected = bytearray(new)
                misdirected[start:end] = new[other : other + BLOCK]
                yield f"block {other} at {start} too", bytes(misdirected)
                misdirected[other : other + BLOCK] = new[start:end]
                yield f"blocks {start} and {other} changed places", bytes(misdirected)


def wrong_reads(server: Harness, session: int, content: bytes) -> tuple[list[tuple[int, int]], int]:
    """Ranges that were answered with other bytes; and how many were refused as damaged."""
    rng, wrong, refused, edge = random.Random(5), [], 0, 0
    ranges = [(0, len(content))]
    for size in SIZES:  # each extent alone, too: a GET that reads no other has only it to go by
        ranges.append((edge, size))
        edge += size
    for _ in range(10):
        start = rng.randrange(len(content))
        ranges.append((start, rng.randrange(1, len(content))))
    for start, count in ranges:
        answer = server.ask(session, m.Get("o", start, count))
        if isinstance(answer, m.Data):
            if bytes(answer.payload) != content[start : start + len(answer.payload)] or not answer.payload:
                wrong.append((start, count))
        else:
            assert answer.code == ErrorCode.CORRUPT, answer
            refused += 1
    return wrong, refused


def put(server: Harness, file: bytes) -> None:
    """Have the disk give those bytes from now on."""
    handle = server.disk.open(PATH, create=False)
    server.disk.write(handle, 0, [file])
    server.disk.sync(handle)
    server.disk.close(handle)


def test_a_running_server_serves_no_byte_of_another_place_or_time() -> None:
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, tried = server.disk.content(PATH), 0
    epoch = 1
    for what, file in damaged_files(old, good):
        if file == good:
            continue
        put(server, good)
        server.disk.put("d/dir/.marks", bytes(256))  # the copy is a good one again, also by its mark
        server.restart()
        epoch += 1
        session = claimed(server, epoch)
        put(server, file)
        wrong, refused = wrong_reads(server, session, content)
        assert not wrong, what
        assert refused, what
        tried += 1
    assert tried > 100


def refused_after_restart(server: Harness, epoch: int, content: bytes, what: str) -> int:
    """Restart the server: some reads are refused, none is wrong. The session that read."""
    server.restart()
    session = claimed(server, epoch)
    wrong, refused = wrong_reads(server, session, content)
    assert not wrong, what
    assert refused, what
    return session


def test_a_start_serves_no_byte_of_another_place_or_time() -> None:
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, marks, epoch = server.disk.content(PATH), server.disk.content("d/dir/.marks"), 1
    for what, file in damaged_files(old, good):
        if file == good:
            continue
        put(server, file)
        server.disk.put("d/dir/.marks", marks)
        epoch += 1
        refused_after_restart(server, epoch, content, what)
    assert epoch > 100


def test_without_a_mark_what_does_not_fit_together_is_damaged_from_its_beginning() -> None:
    """A power cut took the mark: nobody knows the root, so a stale beginning could pass for the object's."""
    # EVIDENCE-OF: P-2
    server, _, old, content = two_lives()
    good, epoch = server.disk.content(PATH), 1
    for number, (start, end) in enumerate(starts()):
        put(server, good[:start] + old[start:end] + good[end:])
        server.disk.put("d/dir/.marks", bytes(256))
        for _ in range(2):  # the next start goes by the mark that this one writes
            epoch += 1
            session = refused_after_restart(server, epoch, content, f"extent {number}")
            assert server.ask(session, m.Get("o", 0, 1)).actual == 0


def test_the_scrub_finds_a_stale_extent_that_nobody_reads() -> None:
    for number in range(len(SIZES)):
        server = Harness(FakeDisk(), scrub=ScrubPlan(1 << 30, 1.0))
        session = claimed(server)
        appended(server, session, parts(1))
        old = server.disk.content(PATH)
        server.ask(session, m.Delete("o"))
        appended(server, session, parts(2))
        start, end = list(starts())[number]
        put(server, server.disk.content(PATH)[:start] + old[start:end] + server.disk.content(PATH)[end:])
        while not any("rounds since" in text for text in server.told):
            server.scrub_on()
            server.settle()
        info = server.ask(session, m.Stat("o")).info
        assert info.corrupt, number
        damaged_at = server.ask(session, m.Get("o", sum(SIZES) - 1, 1)).actual
        assert damaged_at == sum(SIZES[:number]), number


def test_the_root_of_each_object_of_a_name_is_another_and_its_mark_says_it() -> None:
    server, session, old, _ = two_lives()
    roots = {int.from_bytes(file[12:16]) for file in (old, server.disk.content(PATH))}
    assert len(roots) == 2
    assert 0 not in roots
    (mark,) = [one for one in decode_marks(server.disk.content("d/dir/.marks")) if one is not None]
    assert mark.root == int.from_bytes(server.disk.content(PATH)[12:16])
    server.restart()
    server.ask(claimed(server, 2), m.Append("p", 0, prefix_digest(b""), b"x"))
    roots.add(int.from_bytes(server.disk.content("d/dir/p")[12:16]))
    assert len(roots) == 3
    assert session in server.closed


@pytest.mark.parametrize("cut", range(len(SIZES)))
def test_what_is_appended_after_a_torn_tail_and_after_a_restart_follows_the_chain(cut: int) -> None:
    server = Harness(FakeDisk())
    content = appended(server, claimed(server), parts(1)[:cut])
    if cut:
        server.disk.kill()
        handle = server.disk.open(PATH, create=False)
        server.disk.write(handle, server.disk.size(handle), [b"\xd0\x58\x01" + bytes(40)])
        server.restart()
    session = claimed(server, 2)
    for text in parts(3):
        server.ask(session, m.Append("o", len(content), prefix_digest(content), text))
        content += text
    server.restart()
    session = claimed(server, 3)
    assert wrong_reads(server, session, content) == ([], 0)
    assert server.ask(session, m.Get("o", 0, len(content))).payload == content


def test_a_chain_of_one_file_is_no_chain_of_another_with_the_same_name() -> None:
    """Two servers' copies of an object: neither's extents fit into the other's file."""
    texts = parts(1)
    one, other = (extents_of(texts, seed=object_seed("dir", "o"), root=root) for root in (1, 2))
    for number in range(len(texts)):
        server = Harness(FakeDisk())
        server.disk.put(PATH, b"".join([*one[:number], other[number], *one[number + 1 :]]))
        server.start()
        session = claimed(server)
        wrong, _ = wrong_reads(server, session, b"".join(texts))
        assert not wrong
        assert server.ask(session, m.Stat("o")).info.corrupt
