"""Workers whose links break, and which are taken over: each step is used once, in order, and nothing waits
for ever. One end of a link is in `test_peer_links.py`.
"""

import gc
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkpoint import ChannelFrame, FrameType, LinkHello
from checkpoint.core.links.barrier import Alignment
from checkpoint.errors import ChannelFrameError
from checkpoint.key_hash import hash_keys
from dataflow.core.peer_links import (
    Admission,
    Held,
    PeerLinks,
    Records,
    RetainedSteps,
    RowsRecord,
    Sent,
    unused,
    without_rows,
)
from dataflow.errors import StepDiffersError, StepsMissingError
from dataflow.operators.base import HASH_COLUMN
from dataflow.worker.circuit_thread import UsedRows, rows_record
from dataflow.worker.exchange import spilled
from dos_protocol.errors import RemoteProtocolError
from tests.dataflow.linked_workers import (
    INCARNATION,
    JOB,
    REGION,
    ToyRegion,
    ToyWorker,
    frames_for,
    items_of,
    record_of,
)
from tests.support.census import census
from tests.support.small_disk import small_disk

Fault = tuple[str, int, int]
_faults = st.tuples(
    st.integers(0, 150),
    st.tuples(st.sampled_from(["take over", "break", "commit"]), st.integers(0, 2), st.integers(0, 1)),
)


def happen(region: ToyRegion, rng: random.Random, count: int) -> Counter[str]:
    """Let things happen in a random order, while the circuit of at most one worker sleeps. Return how often
    each kind of thing did.
    """
    seen: Counter[str] = Counter()
    asleep = rng.randint(0, len(region.workers))
    resting = (f"worker {asleep} produces", f"worker {asleep} runs")
    for _ in range(count):
        happenings = [one for one in region.happenings() if not one[0].startswith(resting)]
        if not happenings:
            break
        name, act = rng.choice(happenings)
        seen[name] += 1
        region.perform(act)
    return seen


def meet(region: ToyRegion, fault: Fault) -> None:
    kind, number, other = fault
    workers = len(region.workers)
    worker = number % workers
    if kind == "take over":
        region.take_over(worker)
    elif kind == "break":
        region.break_link(worker, (worker + 1 + other) % workers)
    else:
        region.commit()


@given(st.integers(2, 3), st.lists(_faults, max_size=10), st.integers(0, 2**32))
def test_every_step_is_used_once_and_in_order_whatever_breaks_and_whoever_is_taken_over(
    workers: int, faults: list[tuple[int, Fault]], seed: int
) -> None:
    """`ToyWorker.run` compares each step, and `Alignment` raises beyond its limit."""
    region, rng = ToyRegion(workers, last=12), random.Random(seed)
    for pause, fault in faults:
        happen(region, rng, pause)
        meet(region, fault)
    region.finish()
    assert [worker.done for worker in region.workers] == [[12, 12, 12]] * workers
    region.commit()
    for worker in region.workers:
        region.deliver_messages(worker.index)
    for worker in region.workers:
        retained = worker.links.retained
        assert (retained.purged, retained.bytes, retained.end - retained.begin) == (12, 0, 0)


def test_links_hold_as_much_after_the_checkpoint_of_many_steps_as_after_that_of_few() -> None:
    def held(steps: int) -> dict[str, int]:
        region = ToyRegion(3, last=steps)
        region.finish()
        region.commit()
        for worker in region.workers:
            region.deliver_messages(worker.index)
        return census([worker.links for worker in region.workers])

    assert held(40) == held(10)


def random_run(seed: int) -> Counter[str]:
    """Such a run, with faults in a fixed proportion."""
    rng = random.Random(seed)
    region = ToyRegion(2, last=15)
    seen: Counter[str] = Counter()
    for _ in range(5):
        seen += happen(region, rng, rng.randint(0, 250))
        meet(region, (rng.choice(["commit", "take over", "break"]), rng.randint(0, 1), 0))
    region.finish()
    return seen


def random_runs(count: int) -> Counter[str]:
    return sum((random_run(seed) for seed in range(count)), Counter())


def test_the_runs_have_what_the_rules_are_for() -> None:
    seen = random_runs(20)
    for name in (
        "worker 0 gets View of worker 1",
        "worker 0 gets Committed",
        "worker 0 to worker 1: is refused",
        "worker 1 decides on a link",
        "worker 1 runs stage 2",
    ):
        assert seen[name] > 0, name


def what_was_not_used_is_kept() -> AbstractContextManager[Any]:
    return mock.patch.object(Alignment, "restart", lambda self, sender: self.step - 1)


def retained_steps_are_sent_without_a_limit() -> AbstractContextManager[Any]:
    return mock.patch("dataflow.core.peer_links.steps_ahead", 1_000_000)


def newer_terms_do_not_wait() -> AbstractContextManager[Any]:
    original = PeerLinks.admits

    def admits(self: PeerLinks, hello: LinkHello) -> Admission:
        found = original(self, hello)
        return Admission.NOW if found is Admission.LATER else found

    return mock.patch.object(PeerLinks, "admits", admits)


def steps_are_purged_when_they_are_done_here() -> AbstractContextManager[Any]:
    original = ToyWorker.run

    def run(self: ToyWorker, stage: int) -> None:
        original(self, stage)
        self.committed(self.done[2])

    return mock.patch.object(ToyWorker, "run", run)


def steps_that_are_made_again_are_not_retained() -> AbstractContextManager[Any]:
    original = PeerLinks.add

    def add(self: PeerLinks, sent: Sent, records: Records, *, produces: bool) -> None:
        again = self.term > INCARNATION and sent.step <= self.peers_at
        original(self, Sent(sent.step, {}) if again else sent, records, produces=produces)

    return mock.patch.object(PeerLinks, "add", add)


def what_was_sent_before_is_not_sent_again() -> AbstractContextManager[Any]:
    """The place in the queue is kept over links."""
    original = PeerLinks._connected

    def connected(self: PeerLinks, peer: int, have: Any) -> None:
        place = self._outgoing[peer].place
        original(self, peer, have)
        self._outgoing[peer].place = place

    return mock.patch.object(PeerLinks, "_connected", connected)


@pytest.mark.parametrize(
    "bug",
    [
        what_was_not_used_is_kept,
        retained_steps_are_sent_without_a_limit,
        newer_terms_do_not_wait,
        steps_are_purged_when_they_are_done_here,
        steps_that_are_made_again_are_not_retained,
        what_was_sent_before_is_not_sent_again,
    ],
    ids=lambda bug: bug.__name__,
)
def test_the_runs_find_a_planted_bug(bug: Callable[[], AbstractContextManager[Any]]) -> None:
    with bug(), pytest.raises((AssertionError, RemoteProtocolError, ChannelFrameError, StepsMissingError)):
        random_runs(60)


# --- what one worker sends to a peer and accepts from it, with local recovery -------------------------------


def links_of_0(terms: tuple[int, ...] = (7, 7), **fields: Any) -> PeerLinks:
    return PeerLinks(REGION, 0, terms, **{"after_step": 0, **fields})


def made(links: PeerLinks, *steps: int, channel: int = 0) -> None:
    """Worker 0 runs a stage of these steps."""
    for step in steps:
        frames = frames_for(0, 1, channel, step, links.term)
        records = {(1, channel): record_of(items_of(0, 1, channel, step))}
        links.add(Sent(step, {1: frames}), records, produces=channel == 0)


def answer(
    kind: FrameType, payload: bytes = b"", *, step: int = 0, term: int = 7, sender: int = 1
) -> ChannelFrame:
    return ChannelFrame(kind, sender, JOB, term, step, payload=payload)


def connected(
    links: PeerLinks, used: dict[int, int], *, at: int = 0, records: Records | None = None, peer: int = 1
) -> None:
    """The peer answers a new link with what it has used."""
    links.disconnected(peer)
    other = PeerLinks(REGION, peer, links.terms, after_step=at)
    links.answered(peer, other.have(0, Held(used, records or {})))


def sent(links: PeerLinks, peer: int = 1) -> list[ChannelFrame]:
    """Everything that may be sent to the peer now."""
    found: list[ChannelFrame] = []
    while frames := links.next_frames(peer):
        found += frames
    return found


def steps_of(frames: list[ChannelFrame]) -> list[tuple[int, int]]:
    """The (channel, step) of each end of a step."""
    return [(one.channel, one.step) for one in frames if one.type is FrameType.STEP_END]


def hello(**fields: Any) -> LinkHello:
    return LinkHello(
        role="exchange",
        job=REGION,
        attempt=1,
        **{"worker": 1, "incarnation": 7, "to_worker": 0, "to_term": 7, **fields},
    )


@pytest.mark.parametrize(
    ("fields", "admission"),
    [
        ({}, Admission.NOW),
        ({"incarnation": 6}, Admission.NEVER),
        ({"incarnation": 8}, Admission.LATER),
        ({"to_worker": 1}, Admission.NEVER),
        ({"to_worker": -1}, Admission.NEVER),
        ({"to_term": 6}, Admission.NEVER),
        ({"to_term": 8}, Admission.NEVER),
        ({"to_term": 8, "incarnation": 8}, Admission.NEVER),
        ({"worker": 0}, Admission.NEVER),
        ({"worker": 2}, Admission.NEVER),
    ],
)
def test_a_link_is_accepted_by_the_workers_and_terms_that_it_names(
    fields: dict[str, int], admission: Admission
) -> None:
    assert links_of_0().admits(hello(**fields)) is admission


def test_without_local_recovery_one_link_of_each_peer_in_this_incarnation_is_accepted() -> None:
    for peer in range(-1, 5):
        for incarnation in (6, 7, 8):
            links = PeerLinks(REGION, 1, (7, 7, 7), after_step=0, resumes=False)
            dialled = hello(worker=peer, incarnation=incarnation, to_worker=1)
            accepted = peer in (0, 2) and incarnation == 7
            assert links.admits(dialled) is (Admission.NOW if accepted else Admission.NEVER)
            assert links.admits(dialled) is Admission.NEVER, "a second link"


def test_without_local_recovery_what_every_peer_got_is_forgotten_and_no_peer_is_waited_for() -> None:
    links = PeerLinks(REGION, 0, (7, 7, 7), after_step=4, resumes=False)
    made(links, 5)
    links.opened(1)
    assert links.next_frames(1) == (links._frame(FrameType.RESET, 4),)
    made(links, *range(6, 12))
    assert steps_of(sent(links)) == [(0, step) for step in range(5, 12)]
    assert (links.retained.begin, links.retained.end) == (0, 7), "worker 2 has no link yet"
    links.opened(2)
    sent(links, 2)
    assert links.retained.begin == 7
    assert links.retained.bytes == 0
    made(links, 12)
    assert steps_of(sent(links)) == [(0, 12)]


def test_a_link_of_a_newer_term_waits_for_the_view_and_then_the_older_one_is_refused() -> None:
    links = links_of_0()
    assert links.admits(hello(incarnation=8)) is Admission.LATER
    links.view(1, 8)
    assert links.admits(hello(incarnation=8)) is Admission.NOW
    assert links.admits(hello(incarnation=7)) is Admission.NEVER
    links.view(1, 7)
    assert links.terms == [7, 8], "a view that arrives late lowers no term"


@pytest.mark.parametrize("wrong", [{"sender": 0}, {"sender": 2}, {"job": JOB + 1}, {"sender_epoch": 6}])
def test_a_frame_that_is_not_of_its_link_ends_it(wrong: dict[str, int]) -> None:
    links = links_of_0()
    frame = frames_for(1, 0, 0, 1, term=7)[-1]
    assert links.take(1, frame) == frame
    assert links.peers_at == 1
    with pytest.raises(ChannelFrameError, match=r"worker 1 sent a frame with \(sender, job, term\)"):
        links.take(1, frame._replace(**wrong))
    connected(links, {0: 0}, at=9)
    assert links.peers_at == 9, "HAVE comes before the STEP_ENDs, which may wait for AT"
    with pytest.raises(ChannelFrameError, match="worker 1 answered AT with"):
        links.answered(1, answer(FrameType.AT)._replace(**wrong))


@pytest.mark.parametrize(
    "payload", [b"", b"[", b"{}", b"\xff", b'{"at": 1, "used": {"a": 1}, "records": []}', b"[1, 2, 3]"]
)
def test_a_have_that_does_not_decode_ends_the_link(payload: bytes) -> None:
    links = links_of_0()
    with pytest.raises(ChannelFrameError, match="HAVE of worker 1 does not decode"):
        links.answered(1, answer(FrameType.HAVE, payload))
    assert links.next_frames(1) == (), "nothing is sent"


def test_have_comes_first_and_once() -> None:
    links = links_of_0()
    with pytest.raises(ChannelFrameError, match="answered AT"):
        links.answered(1, answer(FrameType.AT, step=3))
    have = msgspec.json.encode({"at": 0, "used": {}, "records": []})
    links.answered(1, answer(FrameType.HAVE, have))
    with pytest.raises(ChannelFrameError, match="answered HAVE"):
        links.answered(1, answer(FrameType.HAVE, have))


def test_only_what_was_not_used_is_sent_by_channel() -> None:
    links = links_of_0()
    made(links, 1, 2, 3)
    made(links, 1, 2, channel=1)
    assert links.next_frames(1) == (), "no link is open"
    connected(links, {0: 2, 1: 1}, at=3)
    frames = sent(links)
    assert frames[0] == links._frame(FrameType.RESET, 5), "it may be ahead up to two steps after its last"
    assert steps_of(frames) == [(0, 3), (1, 2)]
    assert sent(links) == []
    made(links, 4)
    assert steps_of(sent(links)) == [(0, 4)]


def test_the_slowest_peer_with_a_link_decides_what_is_sent_to_all() -> None:
    links = links_of_0((7, 7, 7))
    made(links, 1, 2, 3)
    assert links.sent_until == 3, "no peer has a link"
    for peer in (1, 2):
        connected(links, {0: 0}, at=3, peer=peer)
        assert links.sent_until == 0
    sent(links, 2)
    assert links.sent_until == 0, "nothing was sent to worker 1"
    links.purge(1)
    assert links.sent_until == 1, "what is purged need not be sent"
    sent(links, 1)
    assert links.sent_until == 3
    connected(links, {0: 1}, at=3, peer=2)
    assert links.sent_until == 1, "a new link may need everything again"
    links.disconnected(2)
    assert links.sent_until == 3


def test_retained_steps_keep_near_the_step_that_the_peer_has_produced() -> None:
    links = links_of_0()
    made(links, *range(1, 9))
    connected(links, {0: 0}, at=0)
    assert steps_of(sent(links)) == [(0, 1), (0, 2)]
    assert links.sent_until == 2
    links.answered(1, answer(FrameType.AT, step=1))
    links.answered(1, answer(FrameType.AT, step=0))
    assert steps_of(sent(links)) == [(0, 3)]
    links.answered(1, answer(FrameType.AT, step=9))
    made(links, 9, 10, 11)
    assert steps_of(sent(links)) == [(0, step) for step in range(4, 12)]


def test_an_acceptor_states_its_step_as_long_as_a_peer_may_be_ahead() -> None:
    links = links_of_0()
    links.have(1, Held({}, {}))
    made(links, 1)
    assert links.at(1) is None, "the peer has not sent RESET yet"
    assert links.take(1, answer(FrameType.RESET, step=3)) is None
    assert links.at(1) == answer(FrameType.AT, sender=0, step=1)
    assert links.at(1) is None, "once"
    made(links, 2, 3, 4)
    assert links.at(1) == answer(FrameType.AT, sender=0, step=4)
    made(links, 5)
    assert links.at(1) is None, "it is not ahead any more"


def test_a_new_link_repeats_what_is_durable_and_that_the_input_is_exhausted() -> None:
    links = links_of_0()
    made(links, 1)
    links.durable, links.exhausted = 1, True
    for _ in range(2):
        connected(links, {0: 1}, at=1)
        kinds = [frame.type for frame in sent(links)]
        assert kinds == [FrameType.RESET, FrameType.DURABLE, FrameType.EOF]
        assert sent(links) == []


def test_steps_that_are_not_retained_any_more_are_missing() -> None:
    links = links_of_0()
    made(links, 1, 2, 3, 4)
    links.purge(3)
    with pytest.raises(StepsMissingError, match="needs the steps after 2, and those up to 3 are not"):
        connected(links, {0: 4, 1: 2})
    connected(links, {0: 3, 1: 3}, at=3)
    assert steps_of(sent(links)) == [(0, 4)]


@pytest.mark.parametrize(
    ("used", "text"),
    [
        (RowsRecord(2, 5), "with 3 rows for worker 1 on channel 0, which has used 2 \\("),
        (RowsRecord(3, 5), "with 3 rows for worker 1 on channel 0, which has used 3 other ones \\("),
    ],
)
@pytest.mark.parametrize("first", ["made", "connected"])
def test_a_step_that_differs_from_what_was_used_is_found(used: RowsRecord, text: str, first: str) -> None:
    links = links_of_0()
    assert len(items_of(0, 1, 0, 1)) == 3

    def make_and_connect() -> None:
        if first == "made":
            made(links, 1)
        connected(links, {0: 1}, records={(0, 1): used})
        if first == "connected":
            made(links, 1)

    with pytest.raises(StepDiffersError, match="step 1 was made again " + text):
        make_and_connect()


def test_records_of_purged_steps_and_of_equal_rows_are_no_difference() -> None:
    links = links_of_0()
    made(links, 1, 2)
    links.purge(1)
    equal = record_of(items_of(0, 1, 0, 2))
    connected(links, {0: 2}, records={(0, 1): RowsRecord(99, 9), (0, 2): equal})
    assert links.retained.purged == 1


def test_at_most_once_sends_retained_rows_only_once() -> None:
    links = links_of_0(at_most_once=True)
    made(links, 1, 2)
    connected(links, {0: 0})
    with_rows = [frame.type for frame in sent(links)]
    assert with_rows.count(FrameType.DATA) == len(items_of(0, 1, 0, 1)) + len(items_of(0, 1, 0, 2)) > 0
    other = {(0, 1): RowsRecord(99, 9)}
    connected(links, {0: 0}, records=other)  # rows that are not sent again cannot differ
    again = sent(links)
    assert [(frame.type, frame.step, frame.seq) for frame in again[1:]] == [
        (FrameType.STEP_END, 1, 0),
        (FrameType.STEP_END, 2, 0),
    ]
    links.answered(1, answer(FrameType.AT, step=5))
    made(links, 5)
    assert FrameType.DATA in [frame.type for frame in sent(links)], "new rows are sent"


def test_exactly_once_sends_retained_rows_again() -> None:
    links = links_of_0()
    made(links, 1)
    connected(links, {0: 0})
    first = sent(links)
    connected(links, {0: 0})
    assert sent(links) == first


def test_a_purge_moves_the_place_of_a_peer_that_has_not_got_everything() -> None:
    links = links_of_0()
    made(links, 1, 2, 3)
    connected(links, {0: 2}, at=2)
    links.purge(2)
    assert steps_of(sent(links)) == [(0, 3)]
    assert links.sent_until == links.retained.end == 3


# --- retained steps -----------------------------------------------------------------------------------------


_payloads = st.lists(st.binary(max_size=40), max_size=3)
_frames_of_peers = st.dictionaries(st.integers(1, 3), _payloads, min_size=1, max_size=3)
_actions = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2), _frames_of_peers),
    st.tuples(st.just("purge"), st.integers(0, 9), st.none()),
    st.tuples(st.just("begin to spill"), st.integers(1, 60), st.none()),
    st.tuples(st.just("spilled"), st.integers(0, 9), st.none()),
)


def entry(step: int, payloads: dict[int, list[bytes]], channel: int = 0) -> Sent:
    """An entry with a frame for each payload, and the end of the step."""
    frames = {}
    for peer, items in payloads.items():
        kinds = [*((FrameType.DATA, item) for item in items), (FrameType.STEP_END, b"")]
        frames[peer] = tuple(
            ChannelFrame(
                kind, 0, 2**64 - 1, 65536, step, 3, seq, channel, 1 if payload == b"" else 0, payload
            )
            for seq, (kind, payload) in enumerate(kinds)
        )
    return Sent(step, frames)


def bytes_of(entries: list[Sent]) -> int:
    return sum(len(frame.payload) for one in entries for frames in one.frames.values() for frame in frames)


@given(st.lists(_actions, max_size=40))
@example(  # an entry is purged while it is written to the disk
    [*[("add", 1, {1: [b"x"]})] * 2, ("begin to spill", 1, None), ("purge", 1, None), ("spilled", 0, None)]
)
def test_bytes_and_places_are_those_of_the_entries(actions: list[tuple]) -> None:
    """Entries are moved to the disk while others are added and purged."""
    retained = RetainedSteps(after=0)
    added: list[Sent] = []  # by place
    begin = memory = step = 0
    under_way: tuple[int, list[Sent]] | None = None
    for kind, number, payloads in actions:
        if kind == "add":
            step += number
            added.append(entry(step, payloads))
            retained.add(added[-1])
        elif kind == "purge":
            while begin < len(added) and added[begin].step <= max(number, retained.purged):
                begin += 1
            retained.purge(number)
        elif kind == "begin to spill" and under_way is None:
            until = max(begin, len(added) - number % 3)
            found = retained.to_spill(until, number)
            place = max(begin, memory)
            assert found == added[place : place + len(found)], "the oldest ones in memory"
            assert place + len(found) <= max(until, place)
            if found:
                assert bytes_of(found) >= number > bytes_of(found[:-1])
                under_way = (place, found)
            else:
                assert bytes_of(added[place:until]) < number
        elif kind == "spilled" and under_way is not None:
            place, found = under_way
            retained.spilled(place, [Sent(one.step, dict(one.frames)) for one in found])
            memory, under_way = place + len(found), None
        assert (retained.begin, retained.end) == (begin, len(added))
        assert retained.bytes == bytes_of(added[begin:])
        assert retained.bytes_in_memory == bytes_of(added[max(begin, memory) :])
        assert retained.memory_begin == max(begin, memory)
        for place in (0, begin, begin + 1, len(added)):
            assert list(retained.after(place)) == added[max(place, begin) :]
    retained.purge(step)
    assert (retained.bytes, retained.bytes_in_memory, list(retained.after(0))) == (0, 0, [])


def test_an_entry_behind_one_of_a_later_step_is_forgotten_with_that() -> None:
    """Stage 0 of step 3 may run before stage 1 of step 2."""
    retained = RetainedSteps(after=0)
    for step in (2, 3, 2):
        retained.add(entry(step, {1: [b"x"]}))
    retained.purge(2)
    assert ([one.step for one in retained.after(0)], retained.purged) == ([3, 2], 2)
    retained.purge(1)
    assert retained.purged == 2, "a purge is never taken back"
    retained.purge(3)
    assert (list(retained.after(0)), retained.bytes) == ([], 0)


def test_a_peer_that_needs_purged_steps_on_any_channel_is_found() -> None:
    retained = RetainedSteps(after=4)
    retained.check_complete(Held({0: 4, 1: 9}, {}))
    retained.check_complete(Held({}, {}))
    with pytest.raises(
        StepsMissingError, match="needs the steps after 3, and those up to 4 are not retained"
    ):
        retained.check_complete(Held({0: 9, 1: 3}, {}))


def test_what_a_peer_has_used_is_left_out_by_channel() -> None:
    one = entry(5, {1: [b"a"]})
    other = entry(5, {1: [b"b"]}, channel=1)
    both = Sent(5, {1: one.frames[1] + other.frames[1]})
    assert unused(both, 1, Held({0: 5, 1: 4}, {})) == other.frames[1]
    assert unused(both, 1, Held({}, {})) == both.frames[1]
    assert unused(both, 1, Held({0: 5, 1: 6}, {})) == ()
    assert unused(both, 2, Held({}, {})) == ()


def test_frames_without_rows_are_numbered_anew_on_each_channel() -> None:
    frames = entry(5, {1: [b"a", b"b"]}).frames[1]
    time = frames[0]._replace(type=FrameType.WATERMARK, seq=2)
    end = frames[-1]._replace(seq=3)
    other = entry(5, {1: [b"c"]}, channel=1).frames[1]
    left = without_rows((*frames[:2], time, end, *other))
    assert left == (time._replace(seq=0), end._replace(seq=1), other[-1]._replace(seq=0))


# --- on the disk --------------------------------------------------------------------------------------------


def mapped() -> str:
    """The mappings and open files of this process that are of retained steps."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return "\n".join(line for line in [*maps, *files] if "dos-retained-" in line)


@given(st.lists(st.tuples(st.integers(0, 2**40), _frames_of_peers), min_size=1, max_size=6))
def test_entries_come_back_equal_from_the_disk(entries: list[tuple[int, dict[int, list[bytes]]]]) -> None:
    before = [entry(step, payloads) for step, payloads in entries]
    after = spilled(before, "")
    assert after == before
    assert [list(one.frames) for one in after] == [list(one.frames) for one in before]
    assert bytes_of(after) == bytes_of(before)


def test_entries_on_the_disk_have_no_file_name_and_free_their_space_when_they_are_purged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made" / "when it is needed"
    payload = random.Random(1).randbytes(300_000)
    stored = spilled([entry(1, {1: [payload], 2: [payload[:9]]})], str(folder))
    assert list(folder.iterdir()) == []
    assert "(deleted)" in mapped(), "the rows are in a file without a name"
    assert bytes(stored[0].frames[1][0].payload) == payload
    retained = RetainedSteps(after=0)
    retained.add(stored[0])
    del stored
    retained.purge(1)
    assert mapped() == "", "neither a mapping nor an open file"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A file is in its way: permissions would not stop a test that runs as root."""
    (tmp_path / "file").write_text("x")
    before = entry(1, {1: [b"abc"]})
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            spilled([before], str(folder))
    assert before == entry(1, {1: [b"abc"]})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.process
def test_a_full_disk_is_an_error_and_nothing_remains_on_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = disk.path / "scratch"
        with pytest.raises(OSError, match=r"[Nn]o space left"):
            spilled([entry(1, {1: [bytes(2 << 20)]})], str(folder))
        assert list(folder.iterdir()) == []
        assert mapped() == ""
        assert spilled([entry(1, {1: [b"abc"]})], str(folder)) == [entry(1, {1: [b"abc"]})]


# --- the records of rows ------------------------------------------------------------------------------------


def keyed(words: list[str]) -> pa.RecordBatch:
    """Rows as they are sent on the channel of a key_by: with the hash of their key."""
    column = pa.array(words, pa.string())
    return pa.record_batch({"word": column, HASH_COLUMN: pa.array(hash_keys([column]), pa.uint64())})


def broadcast(words: list[str]) -> pa.RecordBatch:
    """Rows as they are sent on the channel of a broadcast table."""
    return pa.record_batch(
        {"word": pa.array(words, pa.string()), "n": pa.array([1] * len(words), pa.int64())}
    )


def divided(words: list[str], at: list[int]) -> list[list[str]]:
    checkpoints = sorted(one % (len(words) + 1) for one in at)
    return [
        words[begin:end] for begin, end in zip([0, *checkpoints], [*checkpoints, len(words)], strict=True)
    ]


_words = st.lists(st.sampled_from(["a", "b", "cc", "", "\n"]), max_size=12)


@pytest.mark.parametrize("batch", [keyed, broadcast])
@given(words=_words, at=st.lists(st.integers(0, 99), max_size=4), rng=st.randoms(use_true_random=False))
def test_a_record_does_not_depend_on_batches_or_on_the_order_of_rows(
    batch: Callable[[list[str]], pa.RecordBatch], words: list[str], at: list[int], rng: random.Random
) -> None:
    record = rows_record([batch(words)])
    assert record.rows == len(words)
    assert 0 <= record.hashes < 1 << 64
    shuffled = rng.sample(words, len(words))
    assert rows_record([batch(part) for part in divided(shuffled, at)]) == record


@pytest.mark.parametrize("batch", [keyed, broadcast])
@given(words=_words, others=_words)
def test_a_record_differs_for_other_rows(
    batch: Callable[[list[str]], pa.RecordBatch], words: list[str], others: list[str]
) -> None:
    equal = sorted(words) == sorted(others)
    assert (rows_record([batch(words)]) == rows_record([batch(others)])) is equal


def test_no_rows_are_a_record_too() -> None:
    assert rows_record([]) == rows_record([keyed([])]) == rows_record([broadcast([])]) == RowsRecord(0, 0)


def test_rows_of_a_broadcast_table_differ_in_any_column() -> None:
    one = broadcast(["a"])
    other = one.set_column(1, "n", pa.array([2], pa.int64()))
    assert rows_record([one]) != rows_record([other])


def test_used_rows_are_recorded_by_sender_channel_and_step_until_a_checkpoint_covers_them() -> None:
    used = UsedRows(workers=3)
    used.note(1, {0: [(0, keyed(["a"])), (2, keyed(["b"])), (0, keyed(["c"]))], 1: []})
    used.note(2, {0: [(2, keyed(["b"]))]})
    assert used.of(0) == {
        (0, 1): rows_record([keyed(["a", "c"])]),
        (1, 1): RowsRecord(0, 0),
        (0, 2): RowsRecord(0, 0),
    }
    assert used.of(2)[0, 1] == used.of(2)[0, 2] == rows_record([keyed(["b"])])
    assert used.of(1)[0, 1] == RowsRecord(0, 0)
    used.purge(1)
    assert {peer: list(used.of(peer)) for peer in range(3)} == {peer: [(0, 2)] for peer in range(3)}
    assert used.of(7) == {}
