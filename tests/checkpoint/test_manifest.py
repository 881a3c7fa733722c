"""Checkpoints as records: what is written is read again, each invalid record is refused with its reason; and
as JSON values.
"""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.records.layout import Layout, ShardRange, even_layout
from checkpoint.core.records.manifest import (
    NO_NOTE,
    CheckpointFlag,
    EndedLog,
    ForkOrigin,
    OutputIdentity,
    RetiredWorker,
    SavepointNote,
    SplitPosition,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    floors_of,
    keep,
)
from checkpoint.core.records.views import checkpoint_diff, checkpoint_full, checkpoint_row, savepoint_row
from checkpoint.errors import ManifestError
from dos_protocol.digests import ResumePoint
from journal.core.chain import Position
from tests.checkpoint.manifest_samples import (
    a_checkpoint,
    names,
    notes,
    numbered_checkpoint,
    part,
    u64,
    worker_checkpoint,
)


@st.composite
def checkpoints(draw):
    workers = draw(st.integers(1, 4))
    splits = st.dictionaries(
        names, st.builds(SplitPosition, st.integers(0, 2**63), u64, st.booleans()), max_size=3
    )
    sinks = st.dictionaries(names, st.dictionaries(names, st.integers(0, 2**53)), max_size=2)
    parts = {
        index: worker_checkpoint(
            size=draw(st.integers(0, 2**63)),
            sources=draw(st.dictionaries(names, splits, max_size=2)),
            sinks=draw(sinks),
            directories=draw(st.dictionaries(names, st.builds(Position, st.just(3), u64, u64), max_size=2)),
        )
        for index in range(workers)
    }
    retired = st.dictionaries(st.integers(workers, 9), st.builds(RetiredWorker, sinks=sinks), max_size=2)
    return a_checkpoint(
        workers=parts,
        layout=even_layout(workers),
        final=draw(st.booleans()),
        step=draw(st.integers(0, 2**63)),
        retired=draw(retired),
        declared=draw(st.integers(0, 9)),
    )


@given(checkpoints())
def test_a_checkpoint_returns_from_its_record(checkpoint) -> None:
    record = encode_checkpoint(checkpoint)
    assert record.ints == (checkpoint.number, checkpoint.step, checkpoint.incarnation)
    assert bool(record.flags & CheckpointFlag.FINAL) == checkpoint.final
    assert decode_checkpoint(*record) == checkpoint
    check_checkpoint(checkpoint)


@given(checkpoints(), st.data())
def test_a_checkpoint_that_was_damaged_is_refused_by_name_or_still_says_the_same_numbers(
    checkpoint, data
) -> None:
    flags, ints, text = encode_checkpoint(checkpoint)
    bad = bytearray(text)
    bad[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    text = bytes(bad[: data.draw(st.integers(0, len(text)))]) if data.draw(st.booleans()) else bytes(bad)
    try:
        found = decode_checkpoint(flags, ints, text)
        check_checkpoint(found)
    except ManifestError:
        return
    assert (found.number, found.step, found.incarnation) == ints


def edited(**fields):
    """A record whose JSON has these top-level values instead; workers by JSON text."""
    flags, ints, text = encode_checkpoint(a_checkpoint())
    return flags, ints, json.dumps({**json.loads(text), **fields}).encode()


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ((0, (5, 40, 3), b"{"), "is not JSON"),
        ((0, (5, 40, 3), b"[" * 100_000), "is not JSON"),
        ((0, (5, 40, 3), b"{}"), "does not decode"),
        (
            (0, (6, 40, 3), encode_checkpoint(a_checkpoint()).text),
            r"has ints \[6, 40, 3\], but JSON \[5, 40, 3\]",
        ),
        ((0, (), encode_checkpoint(a_checkpoint()).text), r"has ints \[\]"),
        (
            (1, (5, 40, 3), encode_checkpoint(a_checkpoint()).text),
            "flags 0x1 of its record contradict its JSON",
        ),
        (edited(version=2), "version 2, this program reads version 1"),
        (edited(workers={"0": {"state": {"epoch": 1}}}), "does not decode"),
        (
            (0, (5, 40, 3), encode_checkpoint(a_checkpoint()).text.replace(b'"1":{', b'"0":{')),
            "duplicate keys in its record: 0",
        ),
        ((0, (5, 40, 3), bytes(limits.manifest_record_bytes_max + 1)), "its record has"),
    ],
)
def test_a_record_that_is_no_checkpoint_is_refused_with_the_reason(record, text) -> None:
    with pytest.raises(ManifestError, match=text):
        decode_checkpoint(*record)


TERMS = limits.terms_per_incarnation


def at(**fields):
    return {0: worker_checkpoint(), 1: msgspec.structs.replace(worker_checkpoint(), **fields)}


@pytest.mark.parametrize(
    ("checkpoint", "text"),
    [
        (a_checkpoint(workers={0: worker_checkpoint()}), "belong to worker 1, but there are 1"),
        (a_checkpoint(workers={0: worker_checkpoint(), 2: worker_checkpoint()}), "no part of worker 1 of 3"),
        (a_checkpoint(workers={1: worker_checkpoint()}), "no part of worker 0 of 2"),
        (a_checkpoint(workers={n: worker_checkpoint() for n in range(3)}), "worker 2 owns no shards"),
        (a_checkpoint(workers=at(state=Position(3, -1, 0))), "worker 1: invalid state position"),
        (a_checkpoint(workers=at(steps=Position(0, 5, 0))), "worker 1: invalid steps position"),
        (a_checkpoint(workers=at(state=Position(3, 5, 2**64))), "worker 1: invalid state position"),
        (a_checkpoint(workers=at(state=Position(4, 5, 0))), "has epoch 4, which is above incarnation 3"),
        (a_checkpoint(workers=at(directories={"a": Position(4, 5, 0)})), "files-a position has epoch 4"),
        (a_checkpoint(incarnation=TERMS + 1, workers=at(state=Position(2 * TERMS - 1, 5, 0))), None),
        (a_checkpoint(incarnation=TERMS, workers=at(state=Position(2 * TERMS, 5, 0))), "above incarnation"),
        (a_checkpoint(workers=at(directories={"a": Position(3, -5, 0)})), "invalid files-a position"),
        (
            a_checkpoint(workers=at(sources={"in": {"a": SplitPosition(-3)}})),
            "position -3 of split 'a' of 'in'",
        ),
        (a_checkpoint(step=-1), "step -1"),
        (a_checkpoint(number=0), "begin at 1"),
        (a_checkpoint(incarnation=0), "begin at 1"),
        (a_checkpoint(layout=even_layout(3)), "belong to worker 2, but there are 2"),
        (a_checkpoint(layout=Layout((ShardRange(0, 10, 0),))), "shards of every operator end at 10"),
        (a_checkpoint(parent=3), "its parent is checkpoint 3, the one before it is 4"),
        (a_checkpoint(step=1), "its step 1 is below step 30 of checkpoint 4"),
        (a_checkpoint(number=4, parent=4), "never used twice"),
        (a_checkpoint(incarnation=3, workers={n: worker_checkpoint(2) for n in (0, 1)}), None),
    ],
)
def test_a_checkpoint_that_cannot_be_restored_is_refused_with_the_reason(checkpoint, text) -> None:
    before = a_checkpoint(number=4, step=30, parent=3)
    if text is None:
        check_checkpoint(checkpoint, before=before)
        return
    with pytest.raises(ManifestError, match=text):
        check_checkpoint(checkpoint, before=before)


def test_a_checkpoint_of_an_older_incarnation_cannot_follow_and_a_rollback_may_go_back_in_steps() -> None:
    before = a_checkpoint(number=4, step=50, incarnation=4, parent=3)
    with pytest.raises(ManifestError, match="incarnation 3 is below 4 of checkpoint 4"):
        check_checkpoint(a_checkpoint(), before=before)
    back = a_checkpoint(incarnation=4, rolled_back_to=2)
    check_checkpoint(back, before=before)
    assert encode_checkpoint(back).flags == CheckpointFlag.ROLLBACK


def test_a_checkpoint_too_large_to_be_read_again_is_not_written(monkeypatch) -> None:
    monkeypatch.setattr(limits, "manifest_record_bytes_max", 100)
    with pytest.raises(ManifestError, match="the limit is 100"):
        encode_checkpoint(a_checkpoint())


GOLDEN = (
    b'{"number":5,"step":40,"incarnation":3,"final":false,"wall_time_ms":1,"workers":{"0":{"state":{"epoch":3,'
    b'"size":100,"digest":7},"steps":{"epoch":3,"size":101,"digest":8},"sources":{},"sinks":{},"floors":'
    b'{"state":[2,60],"files-own":[2,60]},"directories":{"own":{"epoch":3,"size":70,"digest":9}}}},"layout":'
    b'{"ranges":[{"begin":0,"end":65536,"worker":0,"operator":"","replica":0}],"shard_bits":16,"splits":{}},'
    b'"operators":{"own":{"kind":"map_state","inputs":["by"],"lineage":[["in"]],"stored":["word string"],'
    b'"detail":"key (word)","state":{"columns":"n int64","version":2},"takes":[{"columns":"n int64",'
    b'"version":2,"ttl":true},{"columns":"n int32"}],"gives":"word string"}},"uids":{"own":"_1f-own"},'
    b'"replaced":{"831154110e30ac6a":{"checkpoint":4,"by":"h:1"}},"parent":4,'
    b'"retained":[4,5],"irrevocable":{"mail":"it is sent"},"former_sinks":{},"savepoints":{"good":4},'
    b'"notes":{"good":{"by":"ann@host","wall_time_ms":7,'
    b'"why":"before"}},"rolled_back_to":0,"phases_s":{},"driver":"","version":1,"retired":{"1":{"sinks":'
    b'{"out":{"epoch":2,"size":9,"digest":1}},"floors":{"out-out":[1,0]}}},"declared":2,"line":0,"rewinds":[],'
    b'"rewound":false,"shows_on":true,"orphans":[],"origin":{"region":"shop","checkpoint":41,"step":300,"savepoint":"fork-1f",'
    b'"application":"shop","logs":{},"same_place":[],"wall_time_ms":0},"in_origin":false,'
    b'"identity":{"region":"shop","store":"5c"},"application":"","edit":null,'
    b'"ended":{"_2e-gone":{"sink":"gone","checkpoint":5,"ends":{"0":{"epoch":2,"size":9,"digest":1}},'
    b'"floors":{"0":[1,0]}},"cut":{"sink":"cut","checkpoint":4,"ends":{"1":{"epoch":2,"size":8,"digest":3}},'
    b'"dropped_by":"ann@host"},"back":{"sink":"back","checkpoint":3}},"batch":{"query":"9f","number":7,"time_us":70,'
    b'"rows":3,"after_step":38,"step":40,"begins":{"0":{"out":5}},"ends":{"0":{"out":9}},"marks":{"at":60}}}'
)
"""Every field of a record."""


def test_the_bytes_of_a_record_are_these() -> None:
    checkpoint = decode_checkpoint(0, (5, 40, 3), GOLDEN)
    check_checkpoint(checkpoint)
    assert encode_checkpoint(checkpoint) == (0, (5, 40, 3), GOLDEN)
    assert set(json.loads(GOLDEN)) == set(checkpoint.__struct_fields__)
    assert (checkpoint.retained, checkpoint.irrevocable) == ((4, 5), {"mail": "it is sent"})
    assert checkpoint.notes == {"good": SavepointNote(by="ann@host", wall_time_ms=7, why="before")}
    assert checkpoint.workers[0].directories == {"own": Position(3, 70, 9)}
    assert floors_of(keep((), checkpoint), 0) == {"state": (2, 60), "files-own": (2, 60)}
    assert checkpoint.retired[1].sinks == {"out": {"epoch": 2, "size": 9, "digest": 1}}
    assert (checkpoint.retired[1].floors, checkpoint.workers_declared) == ({"out-out": (1, 0)}, 2)
    assert checkpoint.outputs()[0].floors["out-_2e-gone"] == (1, 0)
    assert [(one["uid"], one["state"], one["ends"]) for one in checkpoint_full(checkpoint)["ended"]] == [
        ("_2e-gone", "readable", {"0": 9}),
        ("back", "taken back", {}),
        ("cut", "dropped", {"1": 8}),
    ]
    assert set(checkpoint.outputs()[1].sinks) == {"out"}


@pytest.mark.parametrize("field", ["retained", "irrevocable"])
def test_a_record_that_lacks_what_protects_data_and_rows_is_refused(field: str) -> None:
    text = json.dumps({name: value for name, value in json.loads(GOLDEN).items() if name != field}).encode()
    with pytest.raises(ManifestError, match=f"missing required field `{field}`"):
        decode_checkpoint(0, (5, 40, 3), text)


def test_a_former_worker_has_no_part() -> None:
    checkpoint = decode_checkpoint(0, (5, 40, 3), GOLDEN)
    with pytest.raises(ManifestError, match="worker 0 has a part and is a former worker"):
        check_checkpoint(msgspec.structs.replace(checkpoint, retired={0: checkpoint.retired[1]}))
    with pytest.raises(ManifestError, match=r"invalid former workers \[-1\]"):
        check_checkpoint(msgspec.structs.replace(checkpoint, retired={-1: checkpoint.retired[1]}))


@pytest.mark.parametrize(
    ("uid", "log", "text"),
    [
        ("out", EndedLog(sink="out", checkpoint=5), "it has sink 'out', whose log has ended"),
        ("_1f-own", EndedLog(sink="own", checkpoint=5), "it has sink '_1f-own', whose log has ended"),
        ("x", EndedLog(sink="x", checkpoint=6), "invalid end of the log of sink 'x'"),
        ("x", EndedLog(sink="x", checkpoint=5, floors={0: (1, 0)}), "invalid end of the log of sink 'x'"),
        (
            "x",
            EndedLog(sink="x", checkpoint=5, ends={0: Position(2, 9, 1)}, floors={0: (1, 10)}),
            "worker 0: the log of sink 'x' is retained from 1, 10 on, and ends at",
        ),
    ],
)
def test_a_log_that_ended_is_of_no_sink_and_ends_after_its_beginning(uid, log, text) -> None:
    checkpoint = decode_checkpoint(0, (5, 40, 3), GOLDEN)
    with pytest.raises(ManifestError, match=text):
        check_checkpoint(msgspec.structs.replace(checkpoint, ended={uid: log}))


def test_a_reader_of_a_name_gets_the_log_of_the_present_sink_and_else_the_one_that_ended_last() -> None:
    checkpoint = a_checkpoint(
        operators=notes(orders="sink", count="count"),
        uids={"orders": "_2-orders"},
        ended={
            "orders": EndedLog(sink="orders", checkpoint=3),
            "audit": EndedLog(sink="checks", checkpoint=4),
            "_3-checks": EndedLog(sink="checks", checkpoint=5),
        },
    )
    names = ("orders", "_2-orders", "checks", "audit", "none")
    assert [checkpoint.log_of(name) for name in names] == [
        "_2-orders", "_2-orders", "_3-checks", "audit", None
    ]  # fmt: skip


def test_a_split_may_stand_at_its_beginning_and_not_before() -> None:
    at = {"lines": {"a": SplitPosition(0)}}
    check_checkpoint(numbered_checkpoint(workers={0: part(sources=at)}))
    for wrong in (SplitPosition(-1), SplitPosition(0, digest=-1), SplitPosition(0, digest=1 << 64)):
        with pytest.raises(ManifestError, match="split 'a' of 'lines'"):
            check_checkpoint(numbered_checkpoint(workers={0: part(sources={"lines": {"a": wrong}})}))


def test_the_digest_of_a_split_is_resumed_below_its_position_at_a_multiple_of_64_kib() -> None:
    block, good = 65_536, SplitPosition(200_000, 1, resume=ResumePoint(65_536, 2))
    checkpoint = numbered_checkpoint(workers={0: part(sources={"lines": {"a": good}})})
    check_checkpoint(checkpoint)
    at_beginning = SplitPosition(200_000, 1, resume=ResumePoint(0, 2))
    check_checkpoint(numbered_checkpoint(workers={0: part(sources={"lines": {"a": at_beginning}})}))
    record = encode_checkpoint(checkpoint)
    assert decode_checkpoint(*record) == checkpoint
    assert b'"a":{"position":200000,"digest":1,"resume":[65536,2]}' in record.text
    for wrong in (
        ResumePoint(block + 1, 2),
        ResumePoint(-block, 2),
        ResumePoint(4 * block, 2),
        ResumePoint(0, -1),
        ResumePoint(block, 1 << 64),
    ):
        at = {"lines": {"a": SplitPosition(200_000, 1, resume=wrong)}}
        with pytest.raises(
            ManifestError, match=rf"'a' of 'lines' at 200000 cannot be resumed at {wrong.size}"
        ):
            check_checkpoint(numbered_checkpoint(workers={0: part(sources=at)}))


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("parent", [3, 4, 5])
def test_a_checkpoint_continues_from_the_one_before_it_or_from_a_later_one_that_is_gone(
    parent: int, gap: bool
) -> None:
    after = numbered_checkpoint(6, parent=parent)
    if parent == 4 or (gap and parent > 4):
        check_checkpoint(after, before=numbered_checkpoint(4), gap=gap)
    else:
        with pytest.raises(ManifestError, match=f"its parent is checkpoint {parent}"):
            check_checkpoint(after, before=numbered_checkpoint(4), gap=gap)


def test_a_record_of_a_checkpoint_may_be_as_long_as_the_limit_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = encode_checkpoint(numbered_checkpoint())
    monkeypatch.setattr(limits, "manifest_record_bytes_max", len(encoded[2]))
    assert decode_checkpoint(*encoded) == numbered_checkpoint()
    monkeypatch.setattr(limits, "manifest_record_bytes_max", len(encoded[2]) - 1)
    with pytest.raises(ManifestError, match=f"has {len(encoded[2])} bytes"):
        decode_checkpoint(*encoded)


def test_a_fork_reads_the_chains_of_its_original_until_its_first_checkpoint_of_its_own() -> None:
    origin = ForkOrigin(region="shop", checkpoint=41, step=300, savepoint="fork-1f", application="shop")
    checkpoint = a_checkpoint(
        origin=origin, in_origin=True, identity=OutputIdentity(region="shop", store="5c")
    )
    assert checkpoint.chains_of("fork") == "shop"
    assert msgspec.structs.replace(checkpoint, in_origin=False).chains_of("fork") == "fork"
    check_checkpoint(checkpoint)
    with pytest.raises(ManifestError, match="in another region, which it does not name"):
        check_checkpoint(msgspec.structs.replace(checkpoint, origin=None))
    later = a_checkpoint(number=6, parent=5, origin=msgspec.structs.replace(origin, checkpoint=40))
    with pytest.raises(ManifestError, match="another origin of the region than checkpoint 5"):
        check_checkpoint(later, before=checkpoint)


# --- as JSON values ---------------------------------------------------------------------------------------


def test_a_checkpoint_in_a_row_and_in_full() -> None:
    at = {"lines": {"a": SplitPosition(7, 255, True), "b": SplitPosition(1)}}
    phases = {0: {"write": 0.25, "sync": 1.0}, 1: {"write": 0.5}}
    workers = {0: part(), 1: part(200, sources=at, sinks={"out": {"size": 3}})}
    checkpoint = numbered_checkpoint(workers=workers, phases_s=phases)
    row = checkpoint_row(checkpoint)
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
    assert row["phaseSeconds"] == phases[0], "of one worker: they add up"
    named = checkpoint_row(checkpoint, (4, 5), {"b": 5, "a": 5, "c": 4})
    assert (named["retained"], named["savepoints"]) == (True, ["a", "b"])
    assert not checkpoint_row(checkpoint, (4,))["retained"]
    full = checkpoint_full(checkpoint)
    assert full["workers"][1]["sources"]["lines"]["a"] == {
        "position": 7, "digest": f"{255:016x}", "done": True,
    }  # fmt: skip
    assert full["workers"][0]["state"] == {"epoch": 1, "size": 100, "digest": f"{7:016x}"}
    assert full["workers"][0]["phaseSeconds"] == phases[0]
    assert [one["worker"] for one in full["layout"]["ranges"]] == [0, 1]


def test_a_savepoint_in_a_row_with_a_note_and_without_one() -> None:
    workers = {0: part(100, floors={"state": (1, 30), "steps": (1, 99)}), 1: part(200)}
    checkpoint = numbered_checkpoint(workers=workers)
    made = SavepointNote(by="ann@host", wall_time_ms=7, why="before the move")
    assert savepoint_row("good", checkpoint, made, 12) == {
        "savepoint": "good",
        "checkpoint": 5,
        "step": 40,
        "timeMs": 5000,
        "madeBy": "ann@host",
        "madeMs": 7,
        "why": "before the move",
        "stateBytes": 300,
        "restoreBytes": 270,
        "heldBytes": 12,
        "fork": None,
        "forkState": None,
    }
    for needs, state in ((None, "missing"), (True, "needed"), (False, "unneeded")):
        row = savepoint_row("fork-1f", checkpoint, SavepointNote(fork="test"), 12, needs)
        assert (row["fork"], row["forkState"]) == ("test", state)
    unknown = savepoint_row("good", checkpoint, NO_NOTE, 0)
    assert (unknown["madeBy"], unknown["madeMs"], unknown["why"]) == (None, None, "")


def test_what_lies_between_two_checkpoints() -> None:
    old = {"lines": {"a": SplitPosition(7), "b": SplitPosition(1), "": SplitPosition(2)}}
    new = {"lines": {"a": SplitPosition(9), "c": SplitPosition(4, done=True), "": SplitPosition(2)}}
    before = numbered_checkpoint(
        5, workers={0: part(100, sources=old, sinks={"out": {"size": 3}, "x": {"size": 1}})}
    )
    after = numbered_checkpoint(
        7,
        workers={0: part(160, sources=new, sinks={"out": {"size": 5}, "x": {"size": 1}}), 1: part(10)},
        operators=notes(count="other"),
    )
    found = checkpoint_diff(before, after)
    assert (found["from"], found["to"], found["steps"], found["seconds"]) == (5, 7, 16, 2.0)
    assert found["stateBytes"] == 60
    assert found["workers"] == [{"worker": 0, "stateBytes": 60, "stepsBytes": 60}]
    assert found["changed"] == ["layout", "operators", "number of workers"]
    assert found["sinks"] == [{"worker": 0, "sink": "out", "from": {"size": 3}, "to": {"size": 5}}]
    columns = ("split", "from", "to", "advanced", "done")
    assert [tuple(row[name] for name in columns) for row in found["splits"]] == [
        ("a", 7, 9, 2, False), ("b", 1, None, None, True), ("c", None, 4, 4, True),
    ]  # fmt: skip
    back = checkpoint_diff(after, before)
    assert (back["steps"], back["seconds"], back["stateBytes"]) == (-16, -2.0, -60)
    same = checkpoint_diff(before, before)
    assert (same["splits"], same["sinks"], same["changed"]) == ([], [], [])
