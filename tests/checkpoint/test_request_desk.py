"""What a driver does with requests that came through the store."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import CutWanted, ResetWanted, StopWanted
from checkpoint.core.region import CutCommitted, RegionState, RegionStatus, ResetReport
from checkpoint.core.request_handling import (
    CommandRegion,
    QueueRead,
    RegionEnded,
    RegionNotified,
    RequestArrived,
    RequestHandler,
    WriteAnswer,
)
from checkpoint.core.request_records import Request

RUNNING = RegionStatus(RegionState.RUNNING, "", 3, 5, 7, 5, 0, (), ())
WALL = 1_700_000_000_000


def a_request(number=1, what="status", **fields):
    return Request(
        **{
            "id": f"{number:032x}",
            "region": "words",
            "what": what,
            "wall_time_ms": WALL,
            "patience_ms": 10_000,
            **fields,
        }
    )


def in_state(state):
    return replace(RUNNING, state=state)


def cut(number, seconds):
    return CutCommitted(cut=number, step=9, final=False, seconds=seconds, phases_s={})


RESET = ResetReport(time=1.0, worker=-1, reason="asked", seconds=0.5, bytes=10, incarnation=4, cut=5)


class Desk:
    """A request queue, a clock that the test sets, and the results."""

    def __init__(self):
        self.desk, self.now, self.status, self.effects = RequestHandler("words"), 100.0, RUNNING, []

    def do(self, event, at=None):
        self.now = self.now if at is None else at
        effects = self.desk.handle(event, self.status, self.now)
        self.effects += effects
        return effects

    def ask(self, *arguments, wall=WALL, **fields):
        return self.do(RequestArrived(a_request(*arguments, **fields), wall))

    def orders(self):
        return [one.event for one in self.effects if isinstance(one, CommandRegion)]

    def said(self, number):
        return [
            (one.verdict, one.reason)
            for one in self.effects
            if isinstance(one, WriteAnswer) and f"{number:032x}" in one.requests
        ]


def test_a_status_is_reported_when_looked_and_serves_all_who_asked() -> None:
    desk = Desk()
    desk.ask(1)
    desk.ask(2)
    (said,) = desk.do(QueueRead())
    assert said == WriteAnswer((f"{1:032x}", f"{2:032x}"), "done", with_status=True)
    assert desk.do(QueueRead()) == []


def test_two_status_answers_are_a_second_apart() -> None:
    desk = Desk()
    desk.ask(1)
    assert desk.do(QueueRead(), at=100.0)
    desk.ask(2)
    assert desk.do(QueueRead(), at=100.0 + limits.status_answers_s / 2) == []
    assert desk.do(QueueRead(), at=100.0 + limits.status_answers_s)


def test_a_checkpoint_is_done_with_one_that_began_after_the_request() -> None:
    desk = Desk()
    desk.ask(1, "checkpoint")
    assert desk.orders() == [CutWanted()]
    desk.do(RegionNotified(cut(6, seconds=2.0)), at=101.0)  # was under way when we asked
    assert desk.said(1) == [("accepted", "the region is RUNNING")]
    assert desk.do(QueueRead()) == [CommandRegion(CutWanted())]
    (said,) = desk.do(RegionNotified(cut(7, seconds=0.5)), at=102.0)
    assert (said.verdict, said.result["checkpoint"]) == ("done", 7)
    assert desk.do(RegionNotified(cut(8, seconds=0.1)), at=103.0) == []


def test_a_checkpoint_wished_while_the_region_restores_is_ordered_when_it_runs() -> None:
    desk = Desk()
    desk.status = in_state(RegionState.RESTORING)
    desk.ask(1, "checkpoint")
    desk.do(QueueRead())
    assert desk.orders() == []
    desk.status = RUNNING
    desk.do(QueueRead())
    assert desk.orders() == [CutWanted()]


def test_a_reset_is_ordered_once_and_done_with_its_report() -> None:
    desk = Desk()
    desk.ask(1, "reset")
    desk.do(QueueRead())
    assert desk.orders() == [ResetWanted()]
    (said,) = desk.do(RegionNotified(RESET))
    assert (said.verdict, said.result["incarnation"], said.result["checkpoint"]) == ("done", 4, 5)


def test_stop_is_done_when_the_region_has_ended_and_the_others_then_fail() -> None:
    desk = Desk()
    for number, what in enumerate(("stop", "checkpoint", "reset", "status")):
        desk.ask(number, what)
    desk.status = replace(in_state(RegionState.STOPPED), reason="stopped")
    desk.do(RegionEnded())
    assert desk.said(0)[-1] == ("done", "")
    assert desk.said(1)[-1] == desk.said(2)[-1] == ("failed", "the region has ended: STOPPED (stopped)")
    assert desk.said(3) == [("done", "")]


def test_a_fenced_driver_has_no_last_words() -> None:
    # EVIDENCE-OF: P-4
    desk = Desk()
    for number, what in enumerate(("stop", "checkpoint", "reset", "status")):
        desk.ask(number, what)
    desk.status = in_state(RegionState.FENCED)
    assert desk.do(RegionEnded()) == []
    assert desk.do(RegionEnded()) == []


@pytest.mark.parametrize(
    ("fields", "state", "wall", "words"),
    [
        ({"region": "other"}, RegionState.RUNNING, WALL, "for region other, this is region words"),
        ({"what": "explode"}, RegionState.RUNNING, WALL, "unknown request 'explode'"),
        ({"incarnation": 2}, RegionState.RUNNING, WALL, "the request is for incarnation 2, and 3 is running"),
        ({}, RegionState.RUNNING, WALL + 70_001, "70 s old by this driver's clock"),
        ({}, RegionState.RUNNING, WALL - 60_001, "60 s in the future"),
        ({}, RegionState.STOPPED, WALL, "the region has ended"),
        ({"what": "checkpoint"}, RegionState.STOPPING, WALL, "being stopped"),
        ({"what": "reset"}, RegionState.STARTING, WALL, "already starting from its last checkpoint"),
        ({"what": "reset"}, RegionState.WAITING_FOR_STORE, WALL, "waits for its store"),
    ],
)
def test_a_request_that_is_refused_has_no_effect_but_the_answer(fields, state, wall, words) -> None:
    # EVIDENCE-OF: P-8
    desk = Desk()
    desk.status = in_state(state)
    (said,) = desk.do(RequestArrived(a_request(**{"what": "stop", **fields}), wall))
    assert said.verdict == "refused"
    assert words in said.reason
    desk.status = RUNNING
    assert desk.do(QueueRead()) == []
    assert desk.do(RegionEnded()) == []


def test_a_request_within_its_patience_and_the_slack_of_clocks_is_taken() -> None:
    desk = Desk()
    desk.ask(1, "stop", wall=WALL + 70_000)
    desk.ask(2, "stop", wall=WALL - 60_000)
    desk.ask(3, "stop", incarnation=3)
    assert desk.orders() == [StopWanted()] * 3


def test_no_more_requests_are_open_than_there_is_room_for() -> None:
    # EVIDENCE-OF: P-9
    desk = Desk()
    for number in range(limits.requests_open_max + 1):
        desk.ask(number, "checkpoint")
    assert desk.said(limits.requests_open_max)[0][0] == "refused"
    assert desk.said(limits.requests_open_max - 1)[0][0] == "accepted"


whats = st.sampled_from(["status", "checkpoint", "reset", "stop", "dance"])
events = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), whats),
        st.tuples(st.just("look")),
        st.tuples(st.just("cut"), st.floats(0, 3)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("state"), st.sampled_from(list(RegionState))),
    ),
    max_size=40,
)


@given(events)
def test_each_id_is_carried_out_at_most_once_and_has_one_last_word(story) -> None:
    desk, asked = Desk(), {}
    for kind, *rest in story:
        desk.now += 0.7
        if kind == "ask":
            number, what = rest
            orders = len(desk.orders())
            desk.ask(number, what)
            if number in asked:
                assert len(desk.orders()) == orders, "a duplicate was carried out"
            asked.setdefault(number, what)
        elif kind == "look":
            desk.do(QueueRead())
        elif kind == "cut":
            desk.do(RegionNotified(cut(6, rest[0])))
        elif kind == "reset":
            desk.do(RegionNotified(RESET))
        else:
            desk.status = in_state(rest[0])
    desk.status = in_state(RegionState.STOPPED)
    desk.do(RegionEnded())
    for number in asked:
        verdicts = [verdict for verdict, _ in desk.said(number)]
        assert [verdict != "accepted" for verdict in verdicts] in ([True], [False, True]), verdicts
    assert desk.orders().count(ResetWanted()) <= sum(what == "reset" for what in asked.values())
