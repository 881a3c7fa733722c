"""What one worker sends to a peer and accepts from it, with local recovery."""

from typing import Any

import msgspec
import pytest

from checkpoint import ChannelFrame, FrameType, LinkHello
from checkpoint.errors import ChannelFrameError
from dataflow.core.peer_links import Admission, Held, PeerLinks, Records, RowsRecord, Sent
from dataflow.errors import StepDiffersError, StepsMissingError
from tests.dataflow.linked_workers import JOB, REGION, frames_for, items_of, record_of


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
    connected(links, {0: 0})
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
