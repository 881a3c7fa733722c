"""Cuts as records: what is written comes back; each thing that can be wrong is refused with its reason."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.divisions import Division, DivisionFold, decode_division, encode_sources
from checkpoint.core.fingerprint import check_fingerprint, differing_operators, fingerprint
from checkpoint.core.layout import Layout, ShardRange, check_layout, even_layout
from checkpoint.core.manifest import (
    Cut,
    CutFlag,
    SplitPosition,
    WorkerCut,
    check_cut,
    decode_cut,
    encode_cut,
    version_with,
)
from checkpoint.core.retention import floors_of, keep, retained_with, steps_kept_after
from checkpoint.errors import FingerprintMismatchError, ManifestError
from journal.core.position import Position
from journal.core.segment import segment_name
from journal.core.trimming import below

u64 = st.integers(0, 2**64 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def worker_cut(epoch=3, size=100, **fields):
    return WorkerCut(state=Position(epoch, size, 7), steps=Position(epoch, size + 1, 8), **fields)


def a_cut(**fields):
    given_ = {
        "cut": 5,
        "step": 40,
        "incarnation": 3,
        "final": False,
        "wall_time_ms": 1,
        "workers": {0: worker_cut(), 1: worker_cut()},
        "layout": even_layout(2),
        "fingerprint": "0" * 16,
        "operators": {"count": "c"},
        "parent": 4,
        **fields,
    }
    return Cut(**given_)


@st.composite
def cuts(draw):
    workers = draw(st.integers(1, 4))
    splits = st.dictionaries(
        names, st.builds(SplitPosition, st.integers(0, 2**63), u64, st.booleans()), max_size=3
    )
    sinks = st.dictionaries(names, st.dictionaries(names, st.integers(0, 2**53)), max_size=2)
    parts = {
        index: worker_cut(
            size=draw(st.integers(0, 2**63)),
            sources=draw(st.dictionaries(names, splits, max_size=2)),
            sinks=draw(sinks),
            directories=draw(st.dictionaries(names, st.builds(Position, st.just(3), u64, u64), max_size=2)),
        )
        for index in range(workers)
    }
    return a_cut(
        workers=parts,
        version=version_with({}, parts),
        layout=even_layout(workers),
        final=draw(st.booleans()),
        step=draw(st.integers(0, 2**63)),
    )


@given(cuts())
def test_a_checkpoint_returns_from_its_record(cut) -> None:
    record = encode_cut(cut)
    assert record.ints == (cut.cut, cut.step, cut.incarnation)
    assert bool(record.flags & CutFlag.FINAL) == cut.final
    assert decode_cut(*record) == cut
    check_cut(cut, workers=len(cut.workers))


@given(cuts(), st.data())
def test_a_checkpoint_that_was_damaged_is_refused_by_name_or_still_says_the_same_numbers(cut, data) -> None:
    flags, ints, text = encode_cut(cut)
    bad = bytearray(text)
    bad[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    text = bytes(bad[: data.draw(st.integers(0, len(text)))]) if data.draw(st.booleans()) else bytes(bad)
    try:
        found = decode_cut(flags, ints, text)
        check_cut(found, workers=len(cut.workers))
    except ManifestError:
        return
    assert (found.cut, found.step, found.incarnation) == ints


def edited(**fields):
    """A record whose JSON has these top-level values instead; workers by JSON text."""
    flags, ints, text = encode_cut(a_cut())
    return flags, ints, json.dumps({**json.loads(text), **fields}).encode()


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ((0, (5, 40, 3), b"{"), "is not JSON"),
        ((0, (5, 40, 3), b"[" * 100_000), "is not JSON"),
        ((0, (5, 40, 3), b"{}"), "does not decode"),
        ((0, (6, 40, 3), encode_cut(a_cut()).text), r"has ints \[6, 40, 3\], but JSON \[5, 40, 3\]"),
        ((0, (), encode_cut(a_cut()).text), r"has ints \[\]"),
        ((1, (5, 40, 3), encode_cut(a_cut()).text), "flags 0x1 of its record contradict its JSON"),
        (edited(version=5), "version 5, this program reads versions up to 4"),
        (edited(workers={"0": {"state": {"epoch": 1}}}), "does not decode"),
        (
            (0, (5, 40, 3), encode_cut(a_cut()).text.replace(b'"1":{', b'"0":{')),
            "duplicate keys in its record: 0",
        ),
        ((0, (5, 40, 3), bytes(limits.manifest_record_bytes_max + 1)), "its record has"),
    ],
)
def test_a_record_that_is_no_checkpoint_is_refused_with_the_reason(record, text) -> None:
    with pytest.raises(ManifestError, match=text):
        decode_cut(*record)


def at(**fields):
    return {0: worker_cut(), 1: msgspec.structs.replace(worker_cut(), **fields)}


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (a_cut(workers={0: worker_cut()}), "made by 1 worker, the region has 2 workers"),
        (a_cut(workers={0: worker_cut(), 2: worker_cut()}), "no part of worker 1 of 3"),
        (a_cut(workers={1: worker_cut()}), "no part of worker 0 of 2"),
        (a_cut(workers={n: worker_cut() for n in range(3)}), "made by 3 workers, the region has 2 workers"),
        (a_cut(workers=at(state=Position(3, -1, 0))), "worker 1: invalid state position"),
        (a_cut(workers=at(steps=Position(0, 5, 0))), "worker 1: invalid steps position"),
        (a_cut(workers=at(state=Position(3, 5, 2**64))), "worker 1: invalid state position"),
        (a_cut(workers=at(state=Position(4, 5, 0))), "has epoch 4, which is above incarnation 3"),
        (a_cut(workers=at(directories={"a": Position(4, 5, 0)})), "directory of 'a' position has epoch 4"),
        (
            a_cut(workers=at(directories={"a": Position(3, -5, 0)})),
            "invalid directory of 'a' position",
        ),
        (
            a_cut(workers=at(sources={"in": {"a": SplitPosition(-3)}})),
            "position -3 of split 'a' of 'in'",
        ),
        (a_cut(step=-1), "step -1"),
        (a_cut(cut=0), "begin at 1"),
        (a_cut(incarnation=0), "begin at 1"),
        (a_cut(layout=even_layout(3)), "belong to worker 2, but there are 2"),
        (a_cut(layout=Layout((ShardRange(0, 10, 0),))), "shards of every operator end at 10"),
        (a_cut(parent=3), "its parent is checkpoint 3, the one before it is 4"),
        (a_cut(step=1), "its step 1 is below step 30 of checkpoint 4"),
        (a_cut(cut=4, parent=4), "never used twice"),
        (a_cut(incarnation=3, workers={n: worker_cut(2) for n in (0, 1)}), None),
    ],
)
def test_a_checkpoint_that_cannot_be_restored_is_refused_with_the_reason(cut, text) -> None:
    before = a_cut(cut=4, step=30, parent=3)
    if text is None:
        check_cut(cut, workers=2, before=before)
        return
    with pytest.raises(ManifestError, match=text):
        check_cut(cut, workers=2, before=before)


def test_a_checkpoint_of_an_older_incarnation_cannot_follow_and_a_rollback_may_go_back_in_steps() -> None:
    before = a_cut(cut=4, step=50, incarnation=4, parent=3)
    with pytest.raises(ManifestError, match="incarnation 3 is below 4 of checkpoint 4"):
        check_cut(a_cut(), workers=2, before=before)
    back = a_cut(incarnation=4, rolled_back_to=2)
    check_cut(back, workers=2, before=before)
    assert encode_cut(back).flags == CutFlag.ROLLBACK


def test_a_checkpoint_too_large_to_be_read_again_is_not_written(monkeypatch) -> None:
    monkeypatch.setattr(limits, "manifest_record_bytes_max", 100)
    with pytest.raises(ManifestError, match="the limit is 100"):
        encode_cut(a_cut())


# --- layouts ----------------------------------------------------------------------------------------


@given(st.integers(1, 200), u64)
def test_every_hash_belongs_to_exactly_one_worker(workers, key_hash) -> None:
    layout = even_layout(workers)
    check_layout(layout, workers)
    owner = layout.worker_of(key_hash)
    last, owners = layout.upper_bounds()
    assert owners[next(i for i, bound in enumerate(last) if bound >= key_hash)] == owner
    (shard,) = layout.shards_of(owner)
    assert shard.begin <= key_hash >> 48 < shard.end
    sizes = [shard.end - shard.begin for shard in layout.ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(0, 10, 0), (9, 65536, 1)], "expected a range from 10, got 9..65536"),
        ([(0, 10, 0), (11, 65536, 1)], "expected a range from 10"),
        ([(0, 65536, 5)], "belong to worker 5, but there are 2"),
        ([(0, 65536, -1)], "belong to worker -1, but there are 2"),
        ([], "end at 0"),
    ],
)
def test_a_layout_with_holes_overlaps_or_strangers_is_refused(ranges, text) -> None:
    with pytest.raises(ManifestError, match=text):
        check_layout(Layout(tuple(ShardRange(*shard) for shard in ranges)), 2)


def test_an_operator_may_have_ranges_of_its_own() -> None:
    own = (ShardRange(0, 1, 1, "sort"), ShardRange(1, 65536, 0, "sort"))
    layout = Layout((*even_layout(2).ranges, *own), splits={"in": {"a": 1}})
    check_layout(layout, 2)
    assert layout.worker_of(0) == 0
    assert layout.worker_of(0, "sort") == 1
    with pytest.raises(ManifestError, match="split 'a' of 'in' belongs to worker 1, but there are 1"):
        check_layout(Layout(even_layout(1).ranges, splits={"in": {"a": 1}}), 1)


# --- fingerprints -----------------------------------------------------------------------------------


def test_a_fingerprint_is_of_names_and_descriptions_in_any_order() -> None:
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    assert fingerprint({"a": "1"}) != fingerprint({"a": "2"})
    assert fingerprint({"a": "1"}) != fingerprint({"b": "1"})
    assert fingerprint({}) == "831154110e30ac6a"


def test_another_graph_is_refused_naming_each_operator_that_differs() -> None:
    stored, present = (
        {"a": "x", "b": "count(w string)", "c": "1"},
        {"b": "count(w binary)", "c": "1", "d": "y"},
    )
    with pytest.raises(FingerprintMismatchError) as error:
        check_fingerprint(stored, present, region="words", cut=9)
    assert error.value.operators == ("a", "b", "d")
    assert "checkpoint 9 of region 'words'" in str(error.value)
    assert "operator 'b' was count(w string), is count(w binary)" in str(error.value)
    assert differing_operators(stored, stored) == []


# --- divisions --------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        names, st.dictionaries(names, st.tuples(st.integers(0, 9), st.integers(9, 2**60))), max_size=3
    )
)
def test_a_division_returns_from_its_record(sources) -> None:
    assert decode_division((4, 99), encode_sources(sources)) == Division(4, 99, sources)


@pytest.mark.parametrize(
    ("ints", "text"),
    [((1,), b"{}"), ((1, 2), b"["), ((1, 2), b'{"in": {"a": [3, 2]}}'), ((1, 2), b'{"in": {"a": [3]}}')],
)
def test_a_division_that_cannot_be_is_refused(ints, text) -> None:
    with pytest.raises(ManifestError):
        decode_division(ints, text)


@given(st.integers(0, 5), st.lists(st.integers(1, 12), max_size=30))
def test_the_newest_line_of_divisions_counts_and_has_no_hole(after, goes_back_to) -> None:
    fold, line = DivisionFold(after), {}
    written = 0
    for time_ms, back in enumerate(goes_back_to):
        step = min(back, written + 1)
        line = {n: value for n, value in line.items() if n < step}
        line[step] = Division(step, time_ms, {})
        written = step
        fold.add(line[step])
        expected = [value for n, value in sorted(line.items()) if n > after]
        assert fold.between(after, 10**6) == expected
        assert fold.last_step == max(after, written)
    fold.forget(after + 2)
    assert fold.between(0, 10**6) == [d for n, d in sorted(line.items()) if n > after + 2]


def test_a_line_that_is_forgotten_whole_continues_where_it_ended() -> None:
    fold = DivisionFold(3)
    for step in (4, 5):
        fold.add(Division(step, 0, {}))
    fold.forget(5)
    assert (fold.after, fold.last_step) == (5, 5)
    fold.add(Division(6, 0, {}))
    assert fold.last_step == 6


def test_a_chain_trimmed_above_the_checkpoint_gives_nothing_to_replay_and_a_hole_is_an_error() -> None:
    fold = DivisionFold(3)
    fold.add(Division(7, 1, {}))
    assert fold.last_step == 3
    fold.add(Division(4, 2, {}))
    fold.add(Division(5, 3, {}))
    with pytest.raises(ManifestError, match="the input division of step 8 follows that of step 5"):
        fold.add(Division(8, 4, {}))


GOLDEN_VERSION_1 = (
    0,
    (5, 40, 3),
    (
        b'{"cut":5,"step":40,"incarnation":3,"final":false,"wall_time_ms":1,"workers":{"0":{"state":{"epoch":3,'
        b'"size":100,"digest":7},"steps":{"epoch":3,"size":101,"digest":8},"sources":{},"sinks":{}}},"layout":'
        b'{"shard_bits":16,"ranges":[{"begin":0,"end":65536,"worker":0,"operator":"","replica":0}],"splits":{}},'
        b'"fingerprint":"0000000000000000","operators":{"count":"c"},"parent":4,"rolled_back_to":0,"phases_s":{},'
        b'"driver":"","version":1}'
    ),
)
"""As it was written before cuts said what is retained."""


def test_a_checkpoint_of_version_1_is_read_and_says_nothing_of_what_is_free() -> None:
    cut = decode_cut(*GOLDEN_VERSION_1)
    check_cut(cut, workers=1)
    assert (cut.version, cut.retained, cut.workers[0].floors) == (1, (), {})
    assert encode_cut(cut).ints == (5, 40, 3)
    assert floors_of(keep((), cut), 0) == {}, "all of its chains may be needed"


GOLDEN_LATER = (
    b'{"cut":5,"step":40,"incarnation":3,"final":false,"wall_time_ms":1,"workers":{"0":{"state":{"epoch":3,'
    b'"size":100,"digest":7},"steps":{"epoch":3,"size":101,"digest":8},"sources":{},"sinks":{},%s}},'
    b'"layout":{"ranges":[{"begin":0,"end":65536,"worker":0,"operator":"","replica":0}],"shard_bits":16,'
    b'"splits":{}},"fingerprint":"0000000000000000","operators":{"count":"c"},"parent":4,"retained":[4,5],'
    b'"rolled_back_to":0,"phases_s":{},"driver":"","version":%d}'
)
"""Of versions 2 and 4: what is said of the worker last, the version."""


def test_a_checkpoint_of_version_2_is_read_and_knows_no_directories() -> None:
    cut = decode_cut(0, (5, 40, 3), GOLDEN_LATER % (b'"floors":{"state":[2,60]}', 2))
    check_cut(cut, workers=1)
    assert (cut.version, cut.workers[0].directories) == (2, {})
    assert floors_of(keep((), cut), 0) == {"state": (2, 60)}


def test_a_checkpoint_of_version_4_has_the_positions_of_directories() -> None:
    part = b'"floors":{"files-own":[2,60]},"directories":{"own":{"epoch":3,"size":70,"digest":9}}'
    cut = decode_cut(0, (5, 40, 3), GOLDEN_LATER % (part, 4))
    check_cut(cut, workers=1)
    assert cut.workers[0].directories == {"own": Position(3, 70, 9)}
    assert (version_with({}, cut.workers), version_with({}, {0: worker_cut()})) == (4, 2)
    with pytest.raises(ManifestError, match="it has directories, which version 2 does not allow"):
        check_cut(msgspec.structs.replace(cut, version=2), workers=1)


@pytest.mark.parametrize(
    ("retained", "before", "text"),
    [
        ((3, 4, 5), (3, 4), None),
        ((4, 5), (), None),
        ((4,), (), "its own"),
        ((4, 6), (), "its own"),
        ((5, 5), (), "expected rising numbers"),
        ((0, 5), (), "expected rising numbers"),
        ((2, 5), (3, 4), r"retains \[2\], which checkpoint 4 released"),
    ],
)
def test_what_is_released_is_never_retained_again(retained, before, text) -> None:
    # EVIDENCE-OF: P-6
    cut, older = a_cut(retained=retained), a_cut(cut=4, parent=3, retained=before)
    if text is None:
        check_cut(cut, workers=2, before=older)
        return
    with pytest.raises(ManifestError, match=text):
        check_cut(cut, workers=2, before=older)


floors = st.dictionaries(st.sampled_from(["state", "steps"]), st.tuples(st.integers(1, 4), st.integers(0, 9)))


@given(st.lists(floors, min_size=1, max_size=12), st.integers(2, 5))
def test_nothing_that_a_retained_checkpoint_needs_is_ever_garbage(given_floors, retain) -> None:
    # EVIDENCE-OF: P-6
    kept, every = (), {}
    for number, chains in enumerate(given_floors, 1):
        cut = a_cut(
            cut=number,
            parent=number - 1,
            step=number,
            workers={0: worker_cut(floors=chains)},
            retained=retained_with(kept, number, retain),
        )
        kept, every[number] = keep(kept, cut), chains
        assert [one.cut for one in kept] == list(cut.retained) == sorted(every)[-retain:]
        garbage = below(floors_of(kept, 0))
        for chain, epoch, base in itertools.product(("state", "steps", "out-x"), range(1, 5), range(10)):
            needed = any((epoch, base) >= every[one.cut].get(chain, (0, 0)) for one in kept)
            if garbage(segment_name(chain, epoch, base)):
                assert not needed
                assert chain != "out-x"
        assert not garbage("state")
        assert steps_kept_after(kept) == kept[0].step


def test_a_checkpoint_of_the_old_format_among_the_retained_keeps_everything() -> None:
    old, new = a_cut(cut=4, parent=3, version=1), a_cut(workers={0: worker_cut(floors={"state": (3, 9)})})
    assert floors_of((old, new), 0) == {}
    assert floors_of((new,), 0) == {"state": (3, 9)}
    assert [cut.cut for cut in keep(keep(keep((), old), a_cut()), a_cut(cut=6))] == [5, 6]
