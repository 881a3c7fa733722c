"""Requests to a region: what a driver does with them, without I/O, and the codec of requests and answers."""

from dataclasses import replace
from itertools import pairwise

import pytest
from construct import Bytes, Const, Int8ub, Int16ub, Int32ub, Int64ub, Struct, this
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CheckpointWanted,
    ReplaceWanted,
    ResetWanted,
    ScaleWanted,
    StopWanted,
)
from checkpoint.core.region import CheckpointCommitted, RegionState, ReplaceSettled, ResetReport, ScaleSettled
from checkpoint.core.requests import (
    HEADER_BYTES,
    MAGIC,
    Answer,
    RecordReader,
    Request,
    Skipped,
    encode_record,
)
from checkpoint.core.verbs import QueueRead, RegionEnded, RegionNotified, RequestArrived, WriteAnswer
from dos_protocol.digests import digest64
from tests.checkpoint.request_harness import RUNNING, WALL, HandlerHarness, a_request, in_state


def checkpoint(number, seconds):
    return CheckpointCommitted(checkpoint=number, step=9, final=False, seconds=seconds, phases_s={})


RESET = ResetReport(time=1.0, worker=-1, reason="asked", seconds=0.5, bytes=10, incarnation=4, checkpoint=5)


def test_a_status_is_reported_when_looked_and_serves_all_who_asked() -> None:
    handler = HandlerHarness()
    handler.request(1)
    handler.request(2)
    (answer,) = handler.handle(QueueRead())
    assert answer == WriteAnswer((f"{1:032x}", f"{2:032x}"), "done", with_status=True)
    assert handler.handle(QueueRead()) == []


def test_two_status_answers_are_a_second_apart() -> None:
    handler = HandlerHarness()
    handler.request(1)
    assert handler.handle(QueueRead(), at=100.0)
    handler.request(2)
    assert handler.handle(QueueRead(), at=100.0 + limits.status_answers_s / 2) == []
    assert handler.handle(QueueRead(), at=100.0 + limits.status_answers_s)


def test_a_checkpoint_is_done_with_one_that_began_after_the_request() -> None:
    handler = HandlerHarness()
    handler.request(1, "checkpoint")
    assert handler.commands() == [CheckpointWanted()]
    handler.handle(
        RegionNotified(checkpoint(6, seconds=2.0)), at=101.0
    )  # was under way when the request arrived
    assert handler.answers(1) == [("accepted", "the region is RUNNING")]
    (answer,) = handler.handle(RegionNotified(checkpoint(7, seconds=0.5)), at=102.0)
    assert (answer.verdict, answer.result["checkpoint"]) == ("done", 7)
    assert handler.handle(RegionNotified(checkpoint(8, seconds=0.1)), at=103.0) == []


def test_a_checkpoint_wished_while_the_region_restores_is_remembered_by_the_coordinator() -> None:
    handler = HandlerHarness()
    handler.status = in_state(RegionState.RESTORING)
    handler.request(1, "checkpoint")
    assert handler.commands() == [CheckpointWanted()]
    handler.status = RUNNING
    assert handler.handle(QueueRead()) == []
    (answer,) = handler.handle(RegionNotified(checkpoint(7, seconds=0.5)), at=102.0)
    assert answer.verdict == "done"


def test_a_reset_is_ordered_once_and_done_with_its_report() -> None:
    handler = HandlerHarness()
    handler.request(1, "reset")
    handler.handle(QueueRead())
    assert handler.commands() == [ResetWanted()]
    (answer,) = handler.handle(RegionNotified(RESET))
    assert (answer.verdict, answer.result["incarnation"], answer.result["checkpoint"]) == ("done", 4, 5)


def test_a_refused_replacement_does_not_answer_the_one_that_is_under_way() -> None:
    handler = HandlerHarness()
    first, second = f"{1:032x}", f"{2:032x}"
    handler.request(1, "replace")
    handler.request(2, "replace", replaces=(0, 1))
    assert handler.commands() == [ReplaceWanted((), first), ReplaceWanted((0, 1), second)]
    handler.handle(RegionNotified(ReplaceSettled((0, 1), error="worker 0 is being replaced", by=second)))
    assert handler.answers(1) == [("accepted", "the region is RUNNING")]
    kept = "no worker was replaced; kept: 0, 1: worker 0 is being replaced"
    assert handler.answers(2)[1:] == [("failed", kept)]
    done = ReplaceSettled((0, 1), (0, 1), "", 2.0, 0.5, first)
    (answer,) = handler.handle(RegionNotified(done))
    assert (answer.verdict, answer.result) == (
        "done",
        {"replaced": [0, 1], "seconds": 2.0, "pauseSeconds": 0.5},
    )


def test_a_change_of_the_number_of_workers_is_answered_with_its_outcome() -> None:
    handler = HandlerHarness()
    for number, workers in enumerate((3, 3, 4)):
        handler.request(number, "scale", workers=workers)
    handler.request(3, "unscale")
    assert handler.commands() == [ScaleWanted(3), ScaleWanted(3), ScaleWanted(4), ScaleWanted(None)]
    handler.handle(RegionNotified(ScaleSettled(4, 2, "the region is already going to 3 workers")))
    assert handler.answers(2)[-1] == (
        "failed",
        "it keeps 2 workers: the region is already going to 3 workers",
    )
    assert [len(handler.answers(number)) for number in (0, 1, 3)] == [1, 1, 1], "only accepted"
    handler.handle(RegionNotified(ScaleSettled(3, 2, "it was cancelled", given_up=True)))
    assert (
        handler.answers(0)[-1] == handler.answers(1)[-1] == ("failed", "it keeps 2 workers: it was cancelled")
    )
    assert handler.answers(3)[-1] == ("done", "")
    handler.request(5, "scale", workers=3)
    (answer,) = handler.handle(RegionNotified(ScaleSettled(3, 3, seconds=2.5, pause_s=0.5)))
    assert (answer.verdict, answer.result) == ("done", {"workers": 3, "seconds": 2.5, "pauseSeconds": 0.5})


def test_stop_is_done_when_the_region_has_ended_and_the_others_then_fail() -> None:
    handler = HandlerHarness()
    for number, what in enumerate(("stop", "checkpoint", "reset", "status")):
        handler.request(number, what)
    handler.status = replace(in_state(RegionState.STOPPED), reason="stopped")
    handler.handle(RegionEnded())
    assert handler.answers(0)[-1] == ("done", "")
    assert (
        handler.answers(1)[-1]
        == handler.answers(2)[-1]
        == ("failed", "the region has ended: STOPPED (stopped)")
    )
    assert handler.answers(3) == [("done", "")]
    report = WriteAnswer((), "done", with_status=True)
    assert handler.handle(RegionEnded()) == [report], "who asks later reads how it ended"


def test_a_fenced_driver_has_no_last_words() -> None:
    # EVIDENCE-OF: P-4
    handler = HandlerHarness()
    for number, what in enumerate(("stop", "checkpoint", "reset", "status")):
        handler.request(number, what)
    handler.status = in_state(RegionState.FENCED)
    assert handler.handle(RegionEnded()) == []
    assert handler.handle(RegionEnded()) == []


@pytest.mark.parametrize(
    ("fields", "state", "wall", "text"),
    [
        ({"region": "other"}, RegionState.RUNNING, WALL, "for region other, this is region words"),
        ({"what": "explode"}, RegionState.RUNNING, WALL, "unknown request 'explode'"),
        ({"incarnation": 2}, RegionState.RUNNING, WALL, "the request is for incarnation 2, and 3 is running"),
        ({}, RegionState.RUNNING, WALL + 70_001, "70 s old by this driver's clock"),
        ({}, RegionState.RUNNING, WALL - 60_001, "60 s in the future"),
        ({}, RegionState.STOPPED, WALL, "the region has ended"),
        ({"what": "checkpoint"}, RegionState.STOPPING, WALL, "being stopped"),
        ({"what": "scale", "workers": 3}, RegionState.STOPPING, WALL, "being stopped"),
        ({"what": "scale", "workers": 3}, RegionState.FAILED, WALL, "the region has ended: FAILED"),
        ({"what": "unscale"}, RegionState.FENCED, WALL, "the region has ended: FENCED"),
        ({"what": "reset"}, RegionState.STARTING, WALL, "already starting from its last checkpoint"),
        ({"what": "reset"}, RegionState.WAITING_FOR_STORE, WALL, "waits for its store"),
    ],
)
def test_a_request_that_is_refused_has_no_effect_but_the_answer(fields, state, wall, text) -> None:
    # EVIDENCE-OF: P-8
    handler = HandlerHarness()
    handler.status = in_state(state)
    (answer,) = handler.handle(RequestArrived(a_request(**{"what": "stop", **fields}), wall))
    assert answer.verdict == "refused"
    assert text in answer.reason
    handler.status = RUNNING
    assert handler.handle(QueueRead()) == []
    assert [effect.requests for effect in handler.handle(RegionEnded())] == [()], "only the last report"


def test_a_request_within_its_patience_and_the_slack_of_clocks_is_taken() -> None:
    handler = HandlerHarness()
    handler.request(1, "stop", wall=WALL + 70_000)
    handler.request(2, "stop", wall=WALL - 60_000)
    handler.request(3, "stop", incarnation=3)
    assert handler.commands() == [StopWanted()] * 3


def test_no_more_requests_are_open_than_there_is_room_for() -> None:
    # EVIDENCE-OF: P-9
    handler = HandlerHarness()
    for number in range(limits.requests_open_max + 1):
        handler.request(number, "checkpoint")
    assert handler.answers(limits.requests_open_max)[0][0] == "refused"
    assert handler.answers(limits.requests_open_max - 1)[0][0] == "accepted"


KINDS = st.sampled_from(["status", "checkpoint", "reset", "stop", "dance"])


events = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 5), KINDS),
        st.tuples(st.just("read")),
        st.tuples(st.just("checkpoint"), st.floats(0, 3)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("state"), st.sampled_from(list(RegionState))),
    ),
    max_size=40,
)


@given(events)
def test_each_id_is_carried_out_at_most_once_and_has_one_last_word(story) -> None:
    handler, requested = HandlerHarness(), {}
    for kind, *rest in story:
        handler.now += 0.7
        if kind == "request":
            number, what = rest
            commands = len(handler.commands())
            handler.request(number, what)
            if number in requested:
                assert len(handler.commands()) == commands, "a duplicate was carried out"
            requested.setdefault(number, what)
        elif kind == "read":
            handler.handle(QueueRead())
        elif kind == "checkpoint":
            handler.handle(RegionNotified(checkpoint(6, rest[0])))
        elif kind == "reset":
            handler.handle(RegionNotified(RESET))
        else:
            handler.status = in_state(rest[0])
    handler.status = in_state(RegionState.STOPPED)
    handler.handle(RegionEnded())
    for number in requested:
        verdicts = [verdict for verdict, _ in handler.answers(number)]
        assert [verdict != "accepted" for verdict in verdicts] in ([True], [False, True]), verdicts
    assert handler.commands().count(ResetWanted()) <= sum(what == "reset" for what in requested.values())


# --- the codec --------------------------------------------------------------------------------------------


ID = "0123456789abcdef" * 2
RECORD = Struct(
    "magic" / Const(b"\xffDRQ"),
    "version" / Const(1, Int8ub),
    "kind" / Int8ub,
    "reserved" / Const(0, Int16ub),
    "payload_bytes" / Int32ub,
    "digest" / Int64ub,
    "payload" / Bytes(this.payload_bytes),
)


def the_request(**fields):
    return Request(
        **{"id": ID, "region": "words", "what": "status", "wall_time_ms": 1, "patience_ms": 2, **fields}
    )


def an_answer(**fields):
    return Answer(
        **{
            "requests": (ID,),
            "region": "words",
            "incarnation": 3,
            "verdict": "done",
            "wall_time_ms": 1,
            **fields,
        }
    )


texts = st.text(max_size=40)
records = st.one_of(
    st.builds(the_request, what=texts, asked_by=texts, region=texts, incarnation=st.integers(0, 2**63)),
    st.builds(
        an_answer,
        verdict=st.sampled_from(["accepted", "refused", "done", "failed"]),
        reason=texts,
        result=st.dictionaries(texts, st.one_of(texts, st.integers(-(2**53), 2**53), st.none()), max_size=4),
    ),
)


def read(*pieces: bytes):
    reader = RecordReader()
    return [found for piece in pieces for found in reader.feed(piece)]


def good(found):
    return [one for one in found if not isinstance(one, Skipped)]


@given(records)
def test_a_record_is_laid_out_as_the_docstring_says(record) -> None:
    data = encode_record(record)
    parsed = RECORD.parse(data)
    assert parsed.kind == (1 if isinstance(record, Request) else 2)
    assert len(data) == HEADER_BYTES + parsed.payload_bytes
    assert parsed.digest == digest64(data[:12] + parsed.payload)
    assert b"\xff" not in parsed.payload


@given(st.lists(records, min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=6))
def test_records_come_out_however_the_bytes_are_cut(written, checkpoints) -> None:
    data = b"".join(map(encode_record, written))
    edges = [0, *sorted(min(checkpoint, len(data)) for checkpoint in checkpoints), len(data)]
    assert read(*(data[a:b] for a, b in pairwise(edges))) == written


def test_a_record_torn_anywhere_also_within_its_header_does_not_swallow_the_next() -> None:
    whole, after = encode_record(an_answer()), an_answer(reason="after")
    for length in range(1, len(whole)):
        assert good(read(whole[:length], encode_record(after))) == [after], length


@given(records, records, st.data())
def test_a_torn_record_costs_itself_and_nothing_after_it(torn, after, data) -> None:
    whole = encode_record(torn)
    kept = whole[: data.draw(st.integers(1, len(whole) - 1))]
    found = read(kept, encode_record(after))
    assert good(found) == [after]
    assert sum(one.count for one in found if isinstance(one, Skipped)) == len(kept)


@given(records, records, st.data())
def test_a_flipped_bit_costs_its_record_at_most(damaged, after, data) -> None:
    whole = bytearray(encode_record(damaged))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    filler = encode_record(after) * 3
    found = good(read(bytes(whole), filler))
    assert damaged not in found or damaged == after
    assert found.count(after) >= filler.count(MAGIC)


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(MAGIC), records.map(encode_record)), max_size=8))
def test_whatever_lies_there_nothing_is_raised_and_every_byte_is_accounted_for(pieces) -> None:
    reader, skipped, taken = RecordReader(), 0, 0
    for piece in pieces:
        for found in reader.feed(piece):
            if isinstance(found, Skipped):
                assert found.count > 0
                assert found.why
                skipped += found.count
            else:
                taken += len(encode_record(found))
    assert skipped + taken <= sum(map(len, pieces))
    assert good(reader.feed(encode_record(the_request()) * 2))[-1:] in ([the_request()], [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:4] + b"\x02" + data[5:], "version 2"),
        (lambda data: data[:5] + b"\x07" + data[6:], "kind 7"),
        (lambda data: data[:6] + b"\x00\x01" + data[8:], "reserved"),
        (lambda data: data[:8] + b"\xff\xff\xff\x00" + data[12:], "exceeds the limit"),
        (lambda data: data[:-1] + b"!", "wrong digest"),
    ],
)
def test_what_is_wrong_is_reported(change, why) -> None:
    found = read(change(encode_record(the_request())))
    assert why in found[0].why
    assert good(found) == []


def test_a_record_whose_json_is_not_ours_is_skipped_whole() -> None:
    def sealed(payload: bytes) -> bytes:
        head = b"\xffDRQ\x01\x01\x00\x00" + len(payload).to_bytes(4, "big")
        return head + digest64(head + payload).to_bytes(8, "big") + payload

    for payload in (b"", b"[]", b"null", b'{"id": 5}', b"[" * 3000, b"\xc3("):
        found = read(sealed(payload) + encode_record(the_request()))
        assert [type(one) for one in found] == [Skipped, Request], payload
        assert found[0].count == HEADER_BYTES + len(payload)


def test_a_record_too_large_is_refused_before_it_is_written() -> None:
    # EVIDENCE-OF: P-9
    with pytest.raises(ValueError, match="exceeds the limit 4096"):
        encode_record(the_request(asked_by="x" * 5000))
