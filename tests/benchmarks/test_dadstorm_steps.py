"""By step, in memory: every tuple leaves once, and how many frames that takes."""

import random
from collections import Counter, defaultdict, deque

import pytest
from dadstorm_steps import StepWorker, label_of_frame, packed, unpacked
from dadstorm_tuples import NodeName
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.links.frames import ChannelFrame
from dataflow.core.regions import DELIVERIES, Delivery


def run(
    workers: int, operators: int, delivery: Delivery, tuples: int, per_step: int, rng: random.Random
) -> tuple[Counter[str], list[StepWorker]]:
    """Run all steps, with messages in any order between the connections; return what was sent."""
    rows = [(ident, b"%d" % ident) for ident in range(tuples)]
    steps = [rows[start : start + per_step] for start in range(0, tuples, per_step)]
    nodes = {}
    for index in range(workers):
        share = [step[index::workers] for step in steps]
        me = NodeName(1, index)
        nodes[me] = StepWorker(me, workers, operators, delivery, share)
    sent: Counter[str] = Counter()
    queues: defaultdict[tuple[NodeName, NodeName], deque[ChannelFrame]] = defaultdict(deque)
    outputs = [(name, node.start()) for name, node in nodes.items()]
    while True:
        for sender, out in outputs:
            for to, frame in out:
                queues[sender, to].append(frame)
                sent[label_of_frame(frame)] += to != sender
        ready = [link for link, queue in queues.items() if queue]
        if not ready:
            return sent, list(nodes.values())
        sender, to = rng.choice(ready)
        outputs = [(to, nodes[to].handle(sender, queues[sender, to].popleft()))]


@given(
    workers=st.integers(1, 4),
    operators=st.integers(1, 3),
    delivery=st.sampled_from(DELIVERIES),
    tuples=st.integers(1, 60),
    per_step=st.integers(1, 20),
    rng=st.randoms(use_true_random=False),
)
def test_every_tuple_leaves_the_last_operator_once(
    workers: int, operators: int, delivery: Delivery, tuples: int, per_step: int, rng: random.Random
) -> None:
    _, nodes = run(workers, operators, delivery, tuples, per_step, rng)
    assert sorted(ident for node in nodes for ident in node.delivered) == list(range(tuples))
    assert all(node.idle for node in nodes)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_frames_depend_on_steps_and_not_on_tuples(workers: int) -> None:
    pairs = workers * (workers - 1)
    for tuples in (400, 4_000):
        sent, nodes = run(workers, 2, "exactly-once", tuples, tuples // 2, random.Random(7))
        assert sent == {"DATA": 2 * 2 * pairs, "STEP_END": 2 * 2 * pairs, "DURABLE": 2 * pairs}
        assert sum(len(node.retained) for node in nodes) == 2 * 2 * 2 * pairs
    sent, nodes = run(workers, 2, "at-most-once", 400, 200, random.Random(7))
    assert sent["DURABLE"] == 0
    assert not any(node.retained for node in nodes)


def test_no_operator_runs_a_step_before_the_chains_of_all_workers_have_it() -> None:
    names = [NodeName(1, 0), NodeName(1, 1)]
    one, other = (StepWorker(name, 2, 1, "exactly-once", [[(name.replica, b"x")]]) for name in names)
    to_other, durable = [], []
    for to, frame in one.start():
        (durable if to == one.me else to_other).append(frame)
    other_durable = [frame for to, frame in other.start() if to == other.me]
    for frame in to_other:
        other.handle(one.me, frame)
    other.handle(other.me, other_durable[0])
    assert not other.idle
    other.handle(one.me, durable[0])
    assert other.idle


def test_the_tuples_of_a_frame_are_read_as_they_were_written() -> None:
    rows = [(1, b""), (2**40, b"text"), (3, bytes(300))]
    assert list(unpacked(packed(rows))) == rows
