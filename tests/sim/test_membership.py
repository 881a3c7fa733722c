"""Runs with an operator: real shells as guests of virtual time, and stores that change."""

from collections.abc import Iterator
from random import Random

import pytest
import trio
from msgspec.structs import replace

from dos_client.core.replacement import GENERATIONS_PER_ERA
from dos_protocol.store_record import Member, StoreRecord
from tests.sim import hunt
from tests.sim.bugs import BUGS
from tests.sim.campaign import digest_elsewhere
from tests.sim.engine.environment import Environment
from tests.sim.engine.guest import Guest, scheduled_by
from tests.sim.engine.network import Network
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import History
from tests.sim.membership.cluster import MembershipCluster
from tests.sim.membership.jobs import Job
from tests.sim.membership.kind import has_operator
from tests.sim.oracles.accepted import Loss
from tests.sim.oracles.store import ViolationError, check_records
from tests.sim.store.machine import Machine

SEEDS = [seed for seed in range(1, 1000) if has_operator(RandomStreams(seed))][:12]

FOUND_SOON = {"old_set_alone_acknowledges": 20, "records_are_not_decided": 12, "repair_reads_nothing": 25}
"""Planted bugs, with the maximum number of runs with an operator. The others are hunted by hand, or change
stories."""


@pytest.fixture
def env() -> Iterator[Environment]:
    with scheduled_by(Random(1)):
        yield Environment(Trace())


class Sleeper(Guest):
    """Notes the time after each sleep; its `finally` block takes a while."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env, "sleeper")
        self.noted: list[float] = []
        self.left: list[float] = []
        self.begin(self._work)

    async def _work(self) -> None:
        try:
            while True:
                await trio.sleep(1.0)
                self.noted.append(round(self.env.now, 3))
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5.0)
            self.left.append(self.now)


def test_a_guest_sleeps_in_virtual_time_by_its_own_clock(env: Environment) -> None:
    sleeper = Sleeper(env)
    sleeper.skew = 0.25
    env.run(None, 2.0)
    assert sleeper.noted == [0.8, 1.6]
    sleeper.kill()


def test_two_guests_take_turns_in_one_thread(env: Environment) -> None:
    one, other = Sleeper(env), Sleeper(env)
    other.pause()
    env.run(None, 2.5)
    assert (one.noted, other.noted) == ([1.0, 2.0], [])
    other.resume()
    env.run(None, 3.7)
    assert (one.noted, other.noted) == ([1.0, 2.0, 3.0], [3.5])
    one.kill()
    other.kill()


def test_a_killed_guest_ends_at_once_and_virtual_time_does_not_advance(env: Environment) -> None:
    sleeper = Sleeper(env)
    env.run(None, 1.5)
    sleeper.kill()
    assert env.now == 1.5
    assert sleeper.left == [6.5], "its tasks continued to their end by its own clock"
    env.run(None, 9.0)
    assert sleeper.noted == [1.0]


def test_an_error_in_a_guest_is_raised_in_the_run(env: Environment) -> None:
    async def main() -> None:
        raise ValueError("a bug")

    guest = Guest(env, "guest")
    guest.begin(main)
    with pytest.raises(ValueError, match="a bug"):
        env.run(None, 1.0)


def test_two_records_of_one_generation_are_noticed(env: Environment) -> None:
    network = Network(env, Random(1), lambda here, there: 0.0)
    one, other = (Machine(env, network, name, Random(1)) for name in ("s0", "s1"))
    members = Member(b"a" * 16, "s0:9999"), Member(b"b" * 16, "s1:9999")
    one.records.append(StoreRecord(b"s" * 16, 2, 1, members))
    other.records.append(StoreRecord(b"s" * 16, 1, 1, members))
    check_records([one, other])
    other.records.append(StoreRecord(b"s" * 16, 2, 1, members[:1]))
    with pytest.raises(ViolationError, match="P-4: s1 kept another record of generation 2"):
        check_records([one, other])


def test_after_an_accepted_loss_all_that_the_survivors_had_is_found_and_no_more_is_required() -> None:
    # EVIDENCE-OF: P-5
    history = History(loss=Loss({"d"}, held={"d": [1, 2]}))
    line = history.line("d")
    line.appended.update(dict.fromkeys(range(1, 6), 1))
    line.acknowledged, line.returned = [1, 2, 3], [1, 2, 3]
    assert history.loss is not None
    with pytest.raises(ViolationError, match="O1: of d 2 records were left, not all are found"):
        history.continues_after_loss("d", [1])
    history.loss.pending.add("d")
    history.continues_after_loss("d", [1, 2, 4])
    assert (line.acknowledged, line.returned) == ([1, 2], [1, 2])
    history.continues_after_loss("d", [1])
    assert line.acknowledged == [1, 2], "after that it is a directory like any other"


def test_an_accepted_loss_counts_from_its_forced_record_on() -> None:
    cluster = MembershipCluster(SEEDS[0], Trace())
    cluster.history.durable["d", "x"] = 10
    cluster.history.loss = Loss(set(), era=0, bytes={("d", "x"): 0})
    repair = Job("repair", record=replace(cluster.record, generation=GENERATIONS_PER_ERA + 1))
    cluster._changed_to(repair)
    assert cluster.history.durable["d", "x"] == 0
    cluster.end()


@pytest.mark.long
def test_a_run_with_an_operator_is_the_same_in_another_process() -> None:
    assert digest_elsewhere(SEEDS[0], "1") == digest_elsewhere(SEEDS[0], "2")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOUND_SOON))
def test_a_planted_bug_of_a_changing_store_is_found(name: str) -> None:
    seeds, what = hunt.seeds_to_find(name, FOUND_SOON[name])
    assert seeds, f"{name} ({BUGS[name].breaks}) was not found in {FOUND_SOON[name]} runs: {what}"
