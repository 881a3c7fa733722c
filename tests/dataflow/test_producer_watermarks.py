"""The watermarks of producers: which of them hold event time back, and what a replay repeats."""

from datetime import timedelta
from typing import Any

from checkpoint.core.records.divisions import Division
from dataflow.core.event_time import UNKNOWN
from tests.dataflow.fed_circuit import FedCircuit, a_piece, row


def test_a_backlog_of_producers_counts_from_when_they_are_listed() -> None:
    fed = FedCircuit()
    assert fed.step()[0] == UNKNOWN, "who the producers are is not known"
    fed.buffer.known(["p", "q"])
    fed.buffer.put(a_piece("p", 1, [row(50)]))
    fed.buffer.polled("p", caught_up=True)
    assert fed.step()[0] == UNKNOWN, "q was opened, and what it wrote is on its way"
    fed.buffer.put(a_piece("q", 1, [row(3)]))
    fed.buffer.polled("q", caught_up=True)
    watermark, division = fed.step()
    assert watermark == 3
    at = fed.positions()
    fed.buffer.put(a_piece("q", 2, [row(7)]))
    watermark, later = fed.step()
    assert watermark == 7
    fed.open(at)
    fed.buffer.put(a_piece("q", 2, [row(7)]))
    assert fed.step(Division(2, 0, later))[0] == 7, "a replay takes it from the division"
    fed.buffer.at_end("q")
    assert fed.step()[0] == 50, "the other split's watermark was in the checkpoint"
    del division


def test_a_producer_that_is_silent_for_long_does_not_count_and_a_replay_repeats_it() -> None:
    fed = FedCircuit(idle_after=timedelta(seconds=60))
    fed.buffer.known(["p", "q"])
    for split, second in (("p", 50), ("q", 3)):
        fed.buffer.put(a_piece(split, 1, [row(second)]))
        fed.buffer.polled(split, caught_up=True)
    assert fed.step()[0] == 3
    assert fed.reading.idle_in() == 60
    fed.now = 59.0
    at = fed.positions()
    fed.buffer.put(a_piece("p", 2, [row(51)]))
    assert fed.step()[0] == 3
    fed.now = 61.0
    assert fed.reading.idle_in() == 0, "a step is made, though there is no input"
    watermark, division = fed.step()
    assert watermark == 51
    assert fed.reading.idle_in() == 58
    fed.buffer.polled("q", caught_up=False)
    assert fed.step()[0] == 51, "what was promised stays"
    fed.open(at)
    assert fed.step(Division(1, 0, division))[0] == 51, "though this worker has heard nothing of time yet"


def test_rows_of_one_batch_have_no_order_however_many_parts_it_has() -> None:
    """A DataFrame is written as one batch, its partitions one after the other: 2.4 of 4.6 million rows were
    counted when its parts were so many that a step ended between them.
    """
    fed = FedCircuit()
    fed.buffer.known(["through"])
    fed.buffer.put(a_piece("through", 1, [row(90)], last=False))
    assert fed.step()[0] == UNKNOWN
    at = fed.positions()
    fed.open(at)
    fed.buffer.put(a_piece("through", 2, [row(10)], last=False))
    assert fed.step()[0] == UNKNOWN
    fed.buffer.put(a_piece("through", 3, [row(20)]))
    assert fed.step()[0] == 90


def other(second: int) -> dict[str, Any]:
    return {**row(second), "key": "other"}


def test_a_producer_whose_rows_are_all_dropped_above_event_time_holds_nothing_back() -> None:
    """No window of the whole graph closed."""
    fed = FedCircuit(keeps=lambda row: row["key"] == "k")
    fed.buffer.known(["p", "q"])
    fed.buffer.put(a_piece("p", 1, [row(50)]))
    fed.buffer.polled("p", caught_up=True)
    assert fed.step()[0] == UNKNOWN
    assert fed.held_by() == "split 'q' of source 'rows': nothing of it was read"
    fed.buffer.put(a_piece("q", 1, [other(3)]))
    fed.buffer.put(a_piece("q", 2, [other(4)]))
    fed.reading.fill(2)
    fed.buffer.put(a_piece("q", 3, [other(5)]))
    assert fed.step()[0] == UNKNOWN, "rows of q wait, and they may be of any time"
    assert "split 'q' of source 'rows': it was read, but none of its rows reached event_time" in fed.held_by()
    assert fed.reading.idle_in() is None
    fed.buffer.polled("q", caught_up=True)
    assert fed.reading.idle_in() == 0, "a step is made, though there is no input"
    watermark, division = fed.step()
    assert watermark == 50, "all of q was read, and it has shown no time"
    at = fed.positions()
    fed.open(at)
    fed.buffer.polled("q", caught_up=True)
    assert fed.step()[0] == 50, "a checkpoint knows it"
    fed.buffer.put(a_piece("q", 4, [row(51)]))
    fed.buffer.put(a_piece("p", 2, [row(60)]))
    assert fed.step()[0] == 51, "from its first row on it counts"
    assert fed.held_by() == (
        "split 'q' of source 'rows': its last row that reached event_time is the oldest of all splits"
    )
    fed.open({})
    assert fed.step(Division(1, 0, division))[0] == 50, "a replay repeats it"


def test_silence_is_that_of_the_rows_that_reach_event_time() -> None:
    """A producer that writes all the time, and whose rows a filter drops, was never silent."""
    fed = FedCircuit(idle_after=timedelta(seconds=60), keeps=lambda row: row["key"] == "k")
    fed.buffer.known(["p", "q"])
    for split, second in (("p", 50), ("q", 3)):
        fed.buffer.put(a_piece(split, 1, [row(second)]))
        fed.buffer.polled(split, caught_up=True)
    assert fed.step()[0] == 3
    for number, seconds in enumerate((20, 40, 59), 2):
        fed.now = float(seconds)
        fed.buffer.put(a_piece("q", number, [other(10 * number)]))
        fed.buffer.put(a_piece("p", number, [row(50 + number)]))
        assert fed.step()[0] == 3
    assert fed.reading.idle_in() == 1
    fed.now = 60.0
    fed.buffer.polled("q", caught_up=False)
    assert fed.step()[0] == 3, "more of q waits in the store"
    fed.buffer.polled("q", caught_up=True)
    fed.buffer.put(a_piece("q", 5, [other(70)]))
    assert fed.step()[0] == 54
    fed.buffer.put(a_piece("q", 6, [row(54)]))
    fed.buffer.put(a_piece("p", 5, [row(99)]))
    assert fed.step()[0] == 54, "with its next row it counts"
