"""Virtual time, processes, connections: the models under the simulator keep their own rules."""

from random import Random
from typing import Any

import pytest

from tests.sim.engine.disk import PowerCutError, SimDisk
from tests.sim.engine.network import Network, Wire
from tests.sim.engine.trace import Trace
from tests.sim.engine.world import LATER_S, Process, Signal, StuckError, World


@pytest.fixture
def world() -> World:
    return World(Trace())


def never() -> bool:
    return False


def test_what_is_due_at_one_moment_goes_in_the_order_asked_for(world: World) -> None:
    done: list[int] = []
    for number in range(5):
        world.after(1.0, lambda number=number: done.append(number))
    world.after(0.5, lambda: done.append(-1))
    world.run(never, 10.0)
    assert done == [-1, 0, 1, 2, 3, 4]
    assert world.now == 10.0


def test_what_goes_round_in_circles_ends_the_run() -> None:
    world = World(Trace(), steps_max=100)

    def again() -> None:
        world.after(0.0, again)

    again()
    with pytest.raises(StuckError, match="101 steps"):
        world.run(never, 1.0)


def test_a_paused_process_does_afterwards_what_came_meanwhile(world: World) -> None:
    process, done = Process(world, "p"), list[str]()
    process.after(1.0, lambda: done.append("first"))
    process.after(2.0, lambda: done.append("second"))
    world.after(0.5, process.pause)
    world.run(never, 3.0)
    assert done == []
    process.resume()
    assert done == ["first", "second"]


def test_a_killed_process_does_nothing_more_and_its_coroutines_end(world: World) -> None:
    process, done = Process(world, "p"), list[str]()

    async def life() -> None:
        try:
            while True:
                await process.sleep(1.0)
                done.append("tick")
        finally:
            done.append("end")

    process.start("life", life())
    world.run(never, 2.5)
    process.kill()
    world.run(never, 9.0)
    assert done == ["tick", "tick", "end"]


def test_a_wait_ends_once_by_the_signal_or_by_the_time(world: World) -> None:
    process, signal, woken = Process(world, "p"), Signal(), list[float]()

    async def life() -> None:
        await process.wait(signal, 2.0)
        woken.append(world.now)
        await process.wait(signal, 2.0)
        woken.append(world.now)

    process.start("life", life())
    world.after(1.0, signal.set)
    world.run(never, 20.0)
    assert woken == [1.0, 3.0]


def test_a_clock_that_runs_fast_has_shorter_seconds(world: World) -> None:
    process, done = Process(world, "p"), list[float]()
    process.skew = 0.25
    process.after(1.0, lambda: done.append(world.now))
    world.run(never, 4.0)
    assert done == pytest.approx([0.8], abs=2 * LATER_S)
    assert process.now == 5.0


class Ear:
    """One end of a connection."""

    def __init__(self) -> None:
        self.heard_items: list[Any] = []
        self.over = False

    def heard(self, item: Any) -> None:
        self.heard_items.append(item)

    def ended(self) -> None:
        self.over = True


def connected(world: World) -> tuple[Network, Wire, Ear, Ear]:
    network = Network(world, Random(1), lambda a, b: 0.001)
    client, server = Process(world, "c"), Process(world, "s")
    there, here, wires = Ear(), Ear(), list[Wire | None]()
    network.listen("s:1", server, lambda wire: there)
    network.dial(client, "s:1", wires.append)
    world.run(lambda: bool(wires), 1.0)
    wire = wires[0]
    assert wire is not None
    wire.attach(here, dialler=True)
    return network, wire, here, there


def test_who_waits_until_a_time_by_a_skewed_clock_gets_there_at_last() -> None:
    rng = Random(7)

    async def until(process: Process, deadline: float, signal: Signal) -> None:
        while process.now < deadline:
            await process.wait(signal, deadline - process.now)

    for number in range(2_000):
        world = World(Trace(), steps_max=100)
        process = Process(world, f"p{number}")
        process.skew, process.offset = rng.uniform(-0.1, 0.1), rng.uniform(-1.0, 1.0)
        deadline = rng.uniform(1.0, 50.0)
        waiting = process.start("wait", until(process, deadline, Signal()))
        assert world.run(lambda waiting=waiting: waiting.done, 100.0)
        assert deadline <= process.now < deadline + 1e-6


def test_messages_come_in_order_and_then_the_end(world: World) -> None:
    _, wire, here, there = connected(world)
    for number in range(50):
        wire.send(number, dialler=True)
    wire.close(dialler=True)
    world.run(never, 2.0)
    assert there.heard_items == list(range(50))
    assert there.over
    assert not here.over, "who closes is not told"


def test_a_blocked_way_holds_back_and_loses_nothing(world: World) -> None:
    network, wire, here, there = connected(world)
    network.block(("c", "s"))
    for number in range(5):
        wire.send(number, dialler=True)
        wire.send(number, dialler=False)
    world.run(never, 2.0)
    assert there.heard_items == []
    assert here.heard_items == [0, 1, 2, 3, 4], "the other way is open"
    network.unblock(("c", "s"))
    world.run(never, 3.0)
    assert there.heard_items == [0, 1, 2, 3, 4]


def test_a_reset_loses_the_last_of_what_was_under_way_and_both_are_reported(world: World) -> None:
    _, wire, here, there = connected(world)
    for number in range(20):
        wire.send(number, dialler=True)
    wire.reset()
    world.run(never, 2.0)
    assert there.heard_items == list(range(len(there.heard_items)))
    assert here.over
    assert there.over


def test_without_power_nothing_is_reported_until_it_is_back(world: World) -> None:
    network, wire, here, _ = connected(world)
    network.process_died(wire.processes[1], power=True)
    wire.send(1, dialler=True)
    world.run(never, 60.0)
    assert not here.over
    network.power_back("s:1")
    world.run(never, 61.0)
    assert here.over


def test_who_inspects_a_disk_from_outside_calls_nothing_of_it() -> None:
    """So the power that goes at a certain call goes in the server, never in the nemesis or an oracle."""
    disk = SimDisk()
    disk.put("d/a/two", b"2")
    disk.put("d/a/one", b"1")
    disk.cut_in = 1
    assert disk.entries("d/a") == ["one", "two"]
    assert disk.entries("d/b") == disk.entries("d/a/one") == []
    assert disk.stable("d/a/one") == disk.content("d/a/one") == b"1"
    assert disk.cut_in == 1
    with pytest.raises(PowerCutError):
        disk.names("d/a")
