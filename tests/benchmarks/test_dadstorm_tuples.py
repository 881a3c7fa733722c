"""Tuple by tuple, in memory: how often a tuple is delivered when a replica is lost at any point, for messages
in any order between the connections.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from dadstorm_tuples import (
    NodeName,
    TupleDecoder,
    TupleKind,
    TupleMessage,
    TupleOutput,
    TupleReplica,
    encode_tuple,
    label_of_tuple,
)
from hypothesis import given
from hypothesis import strategies as st

from dataflow.core.regions import DELIVERIES, Delivery


class Loss(NamedTuple):
    """A replica that is lost after so many messages of its phase."""

    node: NodeName
    after: int


class Network:
    """Nodes and the messages between them. Connections are in order, and in no order among each other."""

    def __init__(self, replicas: int, operators: int, delivery: Delivery, rng: random.Random, **rules: bool):
        sizes = (1, *[replicas] * operators, 1)
        names = [NodeName(operator, index) for operator, size in enumerate(sizes) for index in range(size)]
        self.nodes = {name: TupleReplica(name, sizes, delivery, **rules) for name in names}
        self.source, self.sink = self.nodes[names[0]], self.nodes[names[-1]]
        self.sent: Counter[str] = Counter()
        self._rng = rng
        self._queues: dict[tuple[NodeName, NodeName], deque[TupleMessage | None]] = defaultdict(deque)
        self._speeds = defaultdict(lambda: rng.choice((0.01, 1.0)))
        """The weight of each connection when the next message is chosen: some are slow."""

    def send(self, sender: NodeName, out: TupleOutput) -> None:
        for to, message in out:
            assert abs(to.operator - sender.operator) <= 1, "nodes know their neighbors only"
            assert to != sender
            assert to not in self.nodes[sender].dead
            if 0 < sender.operator < self.sink.me.operator:
                self.sent[label_of_tuple(message)] += 1
            if to in self.nodes:
                self._queues[sender, to].append(message)

    def lose(self, lost: NodeName) -> None:
        """Remove a node. Of what it sent last, some may arrive. All notice it, each at its own time."""
        del self.nodes[lost]
        for name in self.nodes:
            self._queues.pop((name, lost), None)
            queue = self._queues[lost, name]
            for _ in range(self._rng.randint(0, len(queue))):
                queue.pop()
            if abs(name.operator - lost.operator) <= 1:
                queue.append(None)

    def run(self, tuples: Sequence[int], window: int, losses: Sequence[Loss] = ()) -> None:
        """Send the tuples and run until no message is left. Losses that come after that come at the end."""
        source = self.source
        self.send(source.me, source.start([(ident, b"%d" % ident) for ident in tuples], window))
        waiting = deque(losses)
        steps = 0
        while True:
            ready = [link for link, queue in self._queues.items() if queue]
            if waiting and (not ready or steps >= waiting[0].after):
                self.lose(waiting.popleft().node)
                continue
            if not ready:
                return
            steps += 1
            (sender, to), *_ = self._rng.choices(ready, [self._speeds[link] for link in ready])
            message = self._queues[sender, to].popleft()
            node = self.nodes[to]
            self.send(to, node.down(sender) if message is None else node.handle(sender, message))


def check(network: Network, tuples: int, delivery: Delivery) -> None:
    delivered = Counter(network.sink.delivered)
    assert set(delivered) <= set(range(tuples))
    if delivery != "at-least-once":
        assert max(delivered.values(), default=0) <= 1, "a tuple was delivered twice"
    if delivery != "at-most-once":
        assert len(delivered) == tuples, "a tuple is missing"
    busy = [node.me for node in network.nodes.values() if not node.idle]
    assert not busy, "delivery tables are empty at the end"


@given(data=st.data(), delivery=st.sampled_from(DELIVERIES))
def test_each_semantics_holds_when_any_replica_is_lost_at_any_point(
    data: st.DataObject, delivery: Delivery
) -> None:
    replicas, operators = data.draw(st.integers(2, 4), "replicas"), data.draw(st.integers(1, 3), "operators")
    rng = data.draw(st.randoms(use_true_random=False), "rng")
    network = Network(replicas, operators, delivery, rng)
    tuples = 0
    # one failure at a time, as in the paper: the next one comes after the work of the first is done
    for _ in range(data.draw(st.integers(1, 2), "phases")):
        first, tuples = tuples, tuples + data.draw(st.integers(1, 8), "tuples")
        living = Counter(name.operator for name in network.nodes)
        may_be_lost = [name for name in network.nodes if living[name.operator] > 1]
        lost = data.draw(st.sampled_from(may_be_lost), "lost") if may_be_lost else None
        after = data.draw(st.integers(0, 40 * (tuples - first)), "after")
        losses = [Loss(lost, after)] if lost else []
        network.run(range(first, tuples), data.draw(st.integers(1, 5), "window"), losses)
        check(network, tuples, delivery)


def outcomes(delivery: Delivery, rounds: int = 400, **rules: bool) -> tuple[int, int]:
    """Lose a replica in many runs; return in how many a tuple is missing, and in how many one came twice."""
    missing = twice = 0
    for seed in range(rounds):
        rng = random.Random(seed)
        network = Network(2, 2, delivery, rng, **rules)
        lost = NodeName(rng.choice((1, 2)), rng.choice((0, 1)))
        network.run(range(6), 3, [Loss(lost, rng.randint(0, 100))])
        found = Counter(network.sink.delivered)
        missing += len(found) < 6
        twice += max(found.values(), default=0) > 1
    return missing, twice


def test_a_loss_shows_the_difference_between_the_three_semantics() -> None:
    missing, twice = outcomes("at-most-once")
    assert missing > 0
    assert twice == 0
    missing, twice = outcomes("at-least-once")
    assert missing == 0
    assert twice > 0
    assert outcomes("exactly-once") == (0, 0)


@pytest.mark.parametrize("delivery", DELIVERIES[1:])
def test_the_order_of_the_paper_loses_tuples_that_were_confirmed_before_they_were_recorded(
    delivery: Delivery,
) -> None:
    missing, _ = outcomes(delivery, confirm_first=True)
    assert missing > 0


def test_each_sender_is_confirmed_when_a_tuple_comes_again_before_its_record_is_shared() -> None:
    for delivery in DELIVERIES[1:]:
        node = TupleReplica(NodeName(2, 0), (1, 2, 2, 1), delivery)
        node.handle(NodeName(1, 0), TupleMessage(TupleKind.TUPLE, 4))
        node.handle(NodeName(1, 1), TupleMessage(TupleKind.TUPLE, 4))
        out = node.handle(NodeName(2, 1), TupleMessage(TupleKind.CONFIRM, 4, confirmed=TupleKind.RECORD))
        confirmed = {to for to, message in out if message.kind is TupleKind.CONFIRM}
        assert confirmed == {NodeName(1, 0), NodeName(1, 1)}


def test_what_was_to_be_deleted_at_a_lost_node_is_deleted_at_the_one_that_took_over() -> None:
    node = TupleReplica(NodeName(2, 0), (1, 2, 1, 1), "exactly-once")
    tuple_four = TupleMessage(TupleKind.TUPLE, 4)
    node.handle(NodeName(1, 0), tuple_four)
    node.handle(NodeName(1, 1), tuple_four)  # 1.0 is lost, and this node has not noticed it
    out = node.handle(NodeName(3, 0), TupleMessage(TupleKind.CONFIRM, 4, confirmed=TupleKind.TUPLE))
    assert out == [(NodeName(1, 0), TupleMessage(TupleKind.DELETE, 4))]
    assert node.down(NodeName(1, 0)) == [(NodeName(1, 1), TupleMessage(TupleKind.DELETE, 4))]


def test_the_successor_requests_the_tuples_of_pending_records_only() -> None:
    node = TupleReplica(NodeName(1, 1), (1, 2, 1), "exactly-once")
    for kind, ident in ((TupleKind.RECORD, 4), (TupleKind.PURGE, 4), (TupleKind.RECORD, 6)):
        node.handle(NodeName(1, 0), TupleMessage(kind, ident))
    requested = [(NodeName(0, 0), TupleMessage(TupleKind.FETCH, 6))]
    assert node.down(NodeName(1, 0)) == [(NodeName(0, 0), TupleMessage(TupleKind.DELETE, 4)), *requested]
    assert not node.idle
    node.handle(NodeName(0, 0), TupleMessage(TupleKind.GONE, 6))
    assert node.idle


@pytest.mark.parametrize("finished", [False, True])
def test_a_late_record_of_a_lost_node_does_not_make_its_successor_process_a_tuple_again(
    finished: bool,
) -> None:
    node = TupleReplica(NodeName(1, 1), (1, 2, 1), "exactly-once")
    node.handle(NodeName(0, 0), TupleMessage(TupleKind.TUPLE, 4))  # 1.0 did not confirm it
    if finished:
        for sender, kind in ((NodeName(1, 0), TupleKind.RECORD), (NodeName(2, 0), TupleKind.TUPLE)):
            node.handle(sender, TupleMessage(TupleKind.CONFIRM, 4, confirmed=kind))
    node.handle(NodeName(1, 0), TupleMessage(TupleKind.RECORD, 4))
    assert TupleKind.FETCH not in {message.kind for _, message in node.down(NodeName(1, 0))}


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("mirror", [False, True])
def test_without_a_loss_each_tuple_costs_each_operator_as_many_messages_as_the_page_says(
    replicas: int, mirror: bool
) -> None:
    network = Network(replicas, 2, "exactly-once", random.Random(7), mirror=mirror)
    network.run(range(50), 2)
    others = replicas - 1
    assert network.sent == Counter(
        {
            "TUPLE": 100,
            "CONFIRM of TUPLE": 100,
            "DELETE": 100,
            "CONFIRM of DELETE": 100,
            "RECORD": 100 * others,
            "CONFIRM of RECORD": 100 * others,
            "PURGE": 100 * others,
            "CONFIRM of PURGE": 100 * others,
        }
    )
    assert sorted(network.sink.delivered) == list(range(50))


def test_at_most_once_sends_nothing_but_tuples_and_their_confirmations() -> None:
    network = Network(4, 2, "at-most-once", random.Random(7))
    network.run(range(50), 2)
    assert network.sent == Counter({"TUPLE": 100, "CONFIRM of TUPLE": 100})
    assert sorted(network.sink.delivered) == list(range(50))


def test_messages_are_decoded_from_pieces_of_any_size() -> None:
    messages = [
        TupleMessage(TupleKind.TUPLE, 2**40, payload=b"text"),
        TupleMessage(TupleKind.RECORD, 7, 3),
        TupleMessage(TupleKind.CONFIRM, 7, confirmed=TupleKind.RECORD),
    ]
    data = b"".join(map(encode_tuple, messages))
    assert len(data) == 3 * 16 + 4
    for size in range(1, len(data) + 1):
        decoder, found = TupleDecoder(), []
        for start in range(0, len(data), size):
            decoder.receive_data(data[start : start + size])
            found += decoder.frames()
        assert found == messages
