"""Small rules with one boundary each: what older writers left out, what a name says, what a type refuses, and
how cuts and counters look to people. Each is compared with what it means, written out.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.chains.state_blocks import (
    block_schema,
    decode_block,
    encode_block,
    hash_range,
    make_block,
    newest_rows,
    state_version_of,
)
from checkpoint.core.barrier import Alignment
from checkpoint.core.channel_frames import ChannelFrame, FrameType
from checkpoint.core.checkpoint_views import cut_diff, cut_full, cut_row, slowest
from checkpoint.core.divisions import Division, DivisionFold
from checkpoint.core.dropped import dropped_rows, dropped_text, end_text, late_by_text, merge_counters
from checkpoint.core.fingerprint import declared_state, differing_operators
from checkpoint.core.handshake import NONCE_BYTES, Acceptor, Dialler, LinkHello
from checkpoint.core.keys import Kind, Value, canonical_bytes
from checkpoint.core.layout import Layout, ShardRange, check_layout, even_layout
from checkpoint.core.manifest import Cut, SplitPosition, WorkerCut, check_cut, decode_cut, encode_cut
from checkpoint.core.messages import Counters
from checkpoint.core.region import WorkerStatus, region_of_worker, worker_directory
from checkpoint.core.savepoints import savepoint_problem
from checkpoint.core.staged import CommitUnit, is_orphan, staged_name
from checkpoint.core.staged import WriteKind as UnitKind
from checkpoint.errors import HandshakeError, ManifestError, UnsupportedKeyTypeError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from journal.core.position import Position

# --- what is left out ---------------------------------------------------------------------------------------


def test_what_a_record_leaves_out_is_nothing() -> None:
    counters = Counters()
    assert (counters.step, counters.rows_in, counters.rows_out, counters.bytes_in) == (0, 0, 0, 0)
    assert (counters.lag_bytes, counters.busy_s) == (0, 0.0)
    assert (counters.exhausted, counters.waiting_for_store, counters.waiting_reason) == (False, False, "")
    status = WorkerStatus(0, "RUNNING")
    assert (status.attempt, status.pid, status.replayed_bytes, status.restore_seconds) == (0, 0, 0, 0.0)
    assert (status.host, status.scratch, status.error, status.counters) == ("", "", "", counters)
    assert SplitPosition(5) == SplitPosition(5, digest=0, done=False)
    assert DivisionFold().last_step == DivisionFold().after == 0


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("region", "worker"), [("a", 0), ("a.w0001", 2), ("a.b", 9999), ("a", 12345)])
def test_a_workers_directory_says_whose_it_is(region: str, worker: int) -> None:
    assert region_of_worker(worker_directory(region, worker)) == (region, worker)


@pytest.mark.parametrize(
    "name", [".w0001", "a", "w0001", "a.w001", "a.w000x", "a.coord", "a.w\u0661\u0661\u0661\u0661"]
)
def test_what_is_no_workers_directory_is_distinguished(name: str) -> None:
    assert region_of_worker(name) is None


STREAM = UnitKind.STREAM


@pytest.mark.parametrize(("number", "recorded", "orphan"), [
    (6, False, True), (7, False, False), (8, False, False),
    (6, True, True), (7, True, True), (8, True, False),
])  # fmt: skip
def test_of_a_stream_what_is_older_is_left_over(number: int, recorded: bool, orphan: bool) -> None:
    name = staged_name(CommitUnit(STREAM, "q", number), 1, 1)
    assert is_orphan(name, CommitUnit(STREAM, "q", 7), recorded=recorded) is orphan
    job = CommitUnit(UnitKind.JOB, "a" * 32, None)
    assert not is_orphan(name, job, recorded=recorded), "of a stream nothing is a job's to take"
    assert not is_orphan("nonsense", job, recorded=recorded)


def test_of_a_job_what_others_staged_is_left_over_until_it_is_recorded_and_its_own_then() -> None:
    job, other = CommitUnit(UnitKind.JOB, "a" * 32, None), CommitUnit(UnitKind.JOB, "b" * 32, None)
    own, strange = staged_name(job, 1, 1), staged_name(other, 1, 1)
    assert [is_orphan(name, job, recorded=False) for name in (own, strange)] == [False, True]
    assert [is_orphan(name, job, recorded=True) for name in (own, strange)] == [True, False]
    assert not is_orphan(own, CommitUnit(STREAM, "q", 7), recorded=True)


# --- keys and blocks ----------------------------------------------------------------------------------------

TAKES: dict[Kind, tuple[type, ...]] = {
    "string": (str,), "binary": (bytes,), "bool": (bool,), "float": (float,), "int": (int, bool),
    "uint": (int, bool), "date": (int, bool), "timestamp": (int, bool), "decimal": (int, bool),
}  # fmt: skip


@pytest.mark.parametrize("value", ["a", b"a", True, 1, 1.0])
@pytest.mark.parametrize("kind", TAKES)
def test_each_kind_of_key_takes_its_own_values_and_null_alone(kind: Kind, value: Value) -> None:
    assert canonical_bytes(kind, None) == b""
    if isinstance(value, TAKES[kind]):
        assert canonical_bytes(kind, value)
    else:
        with pytest.raises(UnsupportedKeyTypeError, match=f"{type(value).__name__} as {kind}"):
            canonical_bytes(kind, value)


KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])


def block_of(keys: list[int], deleted: list[bool] | None = None) -> Any:
    column = pa.array(keys, pa.int64())
    gone = np.array(deleted or [False] * len(keys), np.bool_)
    return make_block(block_schema(KEYS, VALUES), [column], hash_keys([column]), [column], gone)


def test_a_state_needs_keys_and_says_its_version_from_the_second_on() -> None:
    with pytest.raises(ValueError, match="column names of a state"):
        block_schema(pa.schema([]), VALUES)
    with pytest.raises(ValueError, match="column names of a state"):
        block_schema(KEYS, KEYS)
    first, second = block_schema(KEYS, VALUES), block_schema(KEYS, VALUES, state_version=2)
    assert (state_version_of(first), state_version_of(second)) == (1, 2)
    assert b"dos.state" not in first.metadata, "blocks of version 1 are as they always were"
    assert second.metadata[b"dos.state"] == b"2"


@pytest.mark.parametrize("keep", [False, True])
def test_a_deleted_key_is_kept_if_that_is_asked_for(keep: bool) -> None:
    found = newest_rows([block_of([1, 2, 3]), block_of([2], [True])], keep_deleted=keep)
    assert sorted(found.column("k").to_pylist()) == ([1, 2, 3] if keep else [1, 3])


@given(st.lists(st.integers(-5, 5), unique=True, min_size=1), st.data())
def test_a_range_of_hashes_has_its_beginning_and_not_its_end(keys: list[int], data: st.DataObject) -> None:
    block = newest_rows([block_of(keys)], keep_deleted=True)
    hashes = block.column(HASH_COLUMN).to_pylist()
    bound = st.sampled_from([0, 1 << 64, *hashes])
    begin, end = sorted((data.draw(bound), data.draw(bound)))
    begin = min(begin, (1 << 64) - 1)
    found = hash_range(block, begin, end).column(HASH_COLUMN).to_pylist()
    assert found == [one for one in hashes if begin <= one < end]


def test_a_block_above_the_limit_is_halved_and_not_one_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "state_block_rows_max", 4)
    sizes = [
        [decode_block(part).num_rows for part in encode_block(block_of(list(range(rows))))]
        for rows in range(10)
    ]
    assert sizes == [[], [1], [2], [3], [4], [2, 3], [3, 3], [3, 4], [4, 4], [4, 2, 3]]


# --- layouts and cuts ---------------------------------------------------------------------------------------


def test_a_region_has_from_one_worker_to_the_limit() -> None:
    for workers in (0, -1, limits.workers_max + 1):
        with pytest.raises(ValueError, match="has 1 to"):
            even_layout(workers)
    for workers in (1, limits.workers_max):
        check_layout(even_layout(workers), workers)


def test_a_layout_has_1_to_32_shard_bits() -> None:
    for bits in (0, 33, -1):
        with pytest.raises(ManifestError, match="shard bits"):
            check_layout(Layout((ShardRange(0, 1, 0),), shard_bits=bits), 1)
    for bits in (1, 32):
        check_layout(Layout((ShardRange(0, 1 << bits, 0),), shard_bits=bits), 1)


def part(size: int = 100, **fields: Any) -> WorkerCut:
    return WorkerCut(state=Position(1, size, 7), steps=Position(1, size + 1, 8), **fields)


def a_cut(number: int = 5, *, workers: dict[int, WorkerCut] | None = None, **fields: Any) -> Cut:
    parts = {0: part(), 1: part(200)} if workers is None else workers
    given_ = {
        "cut": number, "step": 8 * number, "incarnation": 3, "final": False, "wall_time_ms": 1000 * number,
        "workers": parts, "layout": even_layout(len(parts)), "fingerprint": "0" * 16,
        "operators": {"count": "c"}, "parent": number - 1,
    }  # fmt: skip
    return Cut(**{**given_, **fields})


def test_a_split_may_stand_at_its_beginning_and_not_before() -> None:
    at = {"lines": {"a": SplitPosition(0)}}
    check_cut(a_cut(workers={0: part(sources=at)}), workers=1)
    for wrong in (SplitPosition(-1), SplitPosition(0, digest=-1), SplitPosition(0, digest=1 << 64)):
        with pytest.raises(ManifestError, match="split 'a' of 'lines'"):
            check_cut(a_cut(workers={0: part(sources={"lines": {"a": wrong}})}), workers=1)


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("parent", [3, 4, 5])
def test_a_checkpoint_continues_from_the_one_before_it_or_from_a_later_one_that_is_gone(
    parent: int, gap: bool
) -> None:
    after = a_cut(6, parent=parent)
    if parent == 4 or (gap and parent > 4):
        check_cut(after, workers=2, before=a_cut(4), gap=gap)
    else:
        with pytest.raises(ManifestError, match=f"its parent is checkpoint {parent}"):
            check_cut(after, workers=2, before=a_cut(4), gap=gap)


def test_a_record_of_a_checkpoint_may_be_as_long_as_the_limit_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = encode_cut(a_cut())
    monkeypatch.setattr(limits, "manifest_record_bytes_max", len(encoded[2]))
    assert decode_cut(*encoded) == a_cut()
    monkeypatch.setattr(limits, "manifest_record_bytes_max", len(encoded[2]) - 1)
    with pytest.raises(ManifestError, match=f"has {len(encoded[2])} bytes"):
        decode_cut(*encoded)


def test_a_savepoint_that_exists_may_be_put_again_when_there_is_no_room_for_another() -> None:
    full = {f"p{number}": 2 for number in range(limits.savepoints_max)}
    assert savepoint_problem("p0", 2, full, {2}) == ""
    assert "already 64 savepoints" in savepoint_problem("new", 2, full, {2})
    full.pop("p0")
    assert savepoint_problem("new", 2, full, {2}) == ""


def test_a_cut_in_a_row_and_in_full() -> None:
    at = {"lines": {"a": SplitPosition(7, 255, True), "b": SplitPosition(1)}}
    phases = {0: {"write": 0.25, "sync": 1.0}, 1: {"write": 0.5}}
    cut = a_cut(workers={0: part(), 1: part(200, sources=at, sinks={"out": {"size": 3}})}, phases_s=phases)
    row = cut_row(cut)
    assert "retained" not in row
    assert "savepoints" not in row
    assert (row["checkpoint"], row["step"], row["incarnation"], row["timeMs"], row["final"]) == (
        5,
        40,
        3,
        5000,
        False,
    )
    assert (row["stateBytes"], row["workerStateBytes"], row["splits"]) == (300, [100, 200], 2)
    assert row["phaseSeconds"] == slowest(phases) == {"write": 0.5, "sync": 1.0}
    said = cut_row(cut, (4, 5), {"b": 5, "a": 5, "c": 4})
    assert (said["retained"], said["savepoints"]) == (True, ["a", "b"])
    assert not cut_row(cut, (4,))["retained"]
    full = cut_full(cut)
    assert full["workers"][1]["sources"]["lines"]["a"] == {
        "position": 7, "digest": f"{255:016x}", "done": True,
    }  # fmt: skip
    assert full["workers"][0]["state"] == {"epoch": 1, "size": 100, "digest": f"{7:016x}"}
    assert full["workers"][0]["phaseSeconds"] == phases[0]
    assert [one["worker"] for one in full["layout"]["ranges"]] == [0, 1]


def test_what_lies_between_two_checkpoints() -> None:
    old = {"lines": {"a": SplitPosition(7), "b": SplitPosition(1), "": SplitPosition(2)}}
    new = {"lines": {"a": SplitPosition(9), "c": SplitPosition(4, done=True), "": SplitPosition(2)}}
    before = a_cut(5, workers={0: part(100, sources=old, sinks={"out": {"size": 3}, "x": {"size": 1}})})
    after = a_cut(
        7,
        workers={0: part(160, sources=new, sinks={"out": {"size": 5}, "x": {"size": 1}}), 1: part(10)},
        operators={"count": "other"},
    )
    found = cut_diff(before, after)
    assert (found["from"], found["to"], found["steps"], found["seconds"]) == (5, 7, 16, 2.0)
    assert found["stateBytes"] == 60
    assert found["workers"] == [{"worker": 0, "stateBytes": 60, "stepsBytes": 60}]
    assert found["changed"] == ["layout", "operators", "number of workers"]
    assert found["sinks"] == [{"worker": 0, "sink": "out", "from": {"size": 3}, "to": {"size": 5}}]
    shown = ("split", "from", "to", "advanced", "done")
    assert [tuple(row[name] for name in shown) for row in found["splits"]] == [
        ("a", 7, 9, 2, False), ("b", 1, None, None, True), ("c", None, 4, 4, True),
    ]  # fmt: skip
    back = cut_diff(after, before)
    assert (back["steps"], back["seconds"], back["stateBytes"]) == (-16, -2.0, -60)
    same = cut_diff(before, before)
    assert (same["splits"], same["sinks"], same["changed"]) == ([], [], [])


# --- counters and descriptions ------------------------------------------------------------------------------


def test_rows_that_were_dropped_are_added_up_by_rule_and_operator() -> None:
    workers = [
        {"sum": {"late_rows_dropped": 1, "rows": 9}, "join": {"null_rows_dropped": 2}},
        {"sum": {"late_rows_dropped": 2000, "null_rows_dropped": 0}},
    ]
    found = dropped_rows(workers)
    assert found == {"late": {"sum": 2001}, "null": {"join": 2}}
    text = dropped_text(found)
    assert text.startswith("2,001 late rows were dropped by 'sum' 2,001: give event_time")
    assert "; 2 null rows were dropped by 'join' 2: " in text
    assert dropped_text({"odd": {"a": 1}}) == "1 odd row was dropped by 'a' 1"
    assert dropped_text({}) == ""
    assert end_text({}) == "all input is processed"
    assert end_text(found) == f"all input is read, but {text}"
    into = {"late_by_us_max": 3, "rows": 4}
    merge_counters(into, {"late_by_us_max": 2, "rows": 5, "new": 1})
    assert into == {"late_by_us_max": 3, "rows": 9, "new": 1}
    assert late_by_text({}) == ""


def test_a_state_that_differs_is_told_with_the_migration_that_it_needs() -> None:
    def why(old: str, new: str) -> str:
        ((name, reason),) = differing_operators({"op": old}, {"op": new})
        assert name == "op"
        return reason

    def apply(version: int, columns: str, rest: str = "") -> str:
        return f"apply {declared_state(version, columns)}{rest}"

    assert (declared_state(1, "n"), declared_state(2, "n")) == ("state (n)", "state v2 (n)")
    assert "state_version=2 and Migration(1," in why(apply(1, "n"), apply(1, "m"))
    assert "state_version=3 and Migration(1," in why(apply(1, "n"), apply(3, "m"))
    assert "state_version=3 and Migration(2," in why(apply(2, "n"), apply(2, "m"))
    assert why(apply(3, "n"), apply(2, "n")).endswith("run a graph that declares version 3")
    for old, new in [(apply(1, "n"), apply(1, "n", " ttl")), ("sum", apply(1, "n")), (apply(1, "n"), "sum")]:
        assert why(old, new) == f"was {old}, is {new}"
    assert differing_operators({"a": "x"}, {"b": "y"}) == [
        ("a", "is in the stored state and not in this graph"),
        ("b", "is in this graph and not in the stored state"),
    ]
    assert differing_operators({"a": "x"}, {"a": "y"}, {"a": ["x"]}) == []


# --- steps and links ----------------------------------------------------------------------------------------


def test_data_alone_ends_no_step() -> None:
    alignment: Alignment[str] = Alignment(2, first_step=1, last_cut=0)
    assert alignment.first_sight() is None
    alignment.data(0, 1, 0, "a")
    assert alignment.first_sight() is None
    alignment.step_end(0, 1, 1)
    alignment.data(0, 2, 0, "b")
    assert alignment.first_sight() == 1


@given(st.integers(0, 5), st.lists(st.integers(1, 9), max_size=12))
def test_divisions_kept_are_the_newest_line_without_a_hole(after: int, steps: list[int]) -> None:
    fold, line = DivisionFold(after), dict[int, int]()
    for time_ms, step in enumerate(steps):
        if step <= after:
            line = {}
        elif line and step > max(line) + 1:
            with pytest.raises(ManifestError, match="follows that of step"):
                fold.add(Division(step, time_ms, {}))
        else:
            line = {known: at for known, at in line.items() if known < step}
            if step == max(line, default=after) + 1:
                line[step] = time_ms
            fold.add(Division(step, time_ms, {}))
            continue
        if step <= after:
            fold.add(Division(step, time_ms, {}))
    assert fold.between(after, 99) == [Division(step, at, {}) for step, at in sorted(line.items())]
    assert fold.last_step == max(line, default=after)
    for until in (after + 1, after + 2):
        fold.forget(until)
        assert [one.step for one in fold.between(0, 99)] == sorted(step for step in line if step > until)


KEY = b"k" * 32


def ends() -> tuple[Dialler, Acceptor]:
    hello = LinkHello(role="exchange", job="app", worker=3, attempt=2, incarnation=9)
    dialler = Dialler(hello, key=KEY, nonce=b"d" * NONCE_BYTES)
    return dialler, Acceptor(job="app", key=KEY, nonce=b"a" * NONCE_BYTES)


def test_nothing_but_a_handshake_frame_is_read_before_the_link_stands() -> None:
    dialler, acceptor = ends()
    hello = dialler.hello()
    other = ChannelFrame(FrameType.DATA, job=hello.job, payload=bytes(hello.payload))
    with pytest.raises(HandshakeError, match="received a DATA frame before"):
        acceptor.received(other)
    with pytest.raises(HandshakeError, match="expected Challenge, got LinkHello"):
        dialler.challenged(hello)
    challenge = acceptor.received(hello)
    with pytest.raises(HandshakeError, match="expected LinkHello, got Challenge"):
        ends()[1].received(challenge)
    with pytest.raises(HandshakeError, match="expected LinkAccepted, got Challenge"):
        dialler.accepted(challenge)


def test_a_nonce_that_is_too_short_is_refused_by_both_ends() -> None:
    hello = LinkHello(role="exchange", job="app", worker=3, attempt=2, incarnation=9)
    short = Dialler(hello, key=KEY, nonce=b"d" * (NONCE_BYTES - 1))
    dialler, acceptor = ends()
    with pytest.raises(HandshakeError, match="expected LinkHello"):
        acceptor.received(short.hello())
    weak = Acceptor(job="app", key=KEY, nonce=b"a" * (NONCE_BYTES - 1))
    with pytest.raises(HandshakeError, match="expected Challenge"):
        dialler.challenged(weak.received(dialler.hello()))


def test_one_float_that_is_no_number_is_one_key() -> None:
    assert canonical_bytes("float", math.nan) == canonical_bytes("float", -math.nan)
    assert canonical_bytes("float", -0.0) == canonical_bytes("float", 0.0)
