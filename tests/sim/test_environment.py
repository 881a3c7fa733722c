"""Virtual time, processes, connections: tests of the models below the simulator."""

from random import Random
from typing import Any

import pytest
import trio

from tests.sim.engine.disk import PowerCutError, SimDisk
from tests.sim.engine.environment import LATER_S, Environment, Process, Signal, StuckError, sleeping_virtually
from tests.sim.engine.network import Network, Wire
from tests.sim.engine.trace import Trace


@pytest.fixture
def env() -> Environment:
    return Environment(Trace())


def never() -> bool:
    return False


def test_events_of_one_moment_happen_in_the_order_of_scheduling(env: Environment) -> None:
    done: list[int] = []
    for number in range(5):
        env.after(1.0, lambda number=number: done.append(number))
    env.after(0.5, lambda: done.append(-1))
    env.run(never, 10.0)
    assert done == [-1, 0, 1, 2, 3, 4]
    assert env.now == 10.0


def test_an_endless_loop_ends_the_run() -> None:
    env = Environment(Trace(), steps_max=100)

    def again() -> None:
        env.after(0.0, again)

    again()
    with pytest.raises(StuckError, match="101 steps"):
        env.run(never, 1.0)


def test_a_resumed_process_handles_what_arrived_during_the_pause(env: Environment) -> None:
    process, done = Process(env, "p"), list[str]()
    process.after(1.0, lambda: done.append("first"))
    process.after(2.0, lambda: done.append("second"))
    env.after(0.5, process.pause)
    env.run(never, 3.0)
    assert done == []
    process.resume()
    assert done == ["first", "second"]


def test_a_killed_process_does_nothing_more_and_its_coroutines_end(env: Environment) -> None:
    process, done = Process(env, "p"), list[str]()

    async def main() -> None:
        try:
            while True:
                await process.sleep(1.0)
                done.append("tick")
        finally:
            done.append("end")

    process.start("work", main())
    env.run(never, 2.5)
    process.kill()
    env.run(never, 9.0)
    assert done == ["tick", "tick", "end"]


def test_a_wait_ends_once_by_the_signal_or_by_the_time(env: Environment) -> None:
    process, signal, woken = Process(env, "p"), Signal(), list[float]()

    async def main() -> None:
        await process.wait(signal, 2.0)
        woken.append(env.now)
        await process.wait(signal, 2.0)
        woken.append(env.now)

    process.start("work", main())
    env.after(1.0, signal.set)
    env.run(never, 20.0)
    assert woken == [1.0, 3.0]


def test_a_clock_that_runs_fast_has_shorter_seconds(env: Environment) -> None:
    process, done = Process(env, "p"), list[float]()
    process.skew = 0.25
    process.after(1.0, lambda: done.append(env.now))
    env.run(never, 4.0)
    assert done == pytest.approx([0.8], abs=2 * LATER_S)
    assert process.now == 5.0


class Recorder:
    """One end of a connection."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.over = False

    def received(self, item: Any) -> None:
        self.items.append(item)

    def ended(self) -> None:
        self.over = True


def connected(env: Environment) -> tuple[Network, Wire, Recorder, Recorder]:
    network = Network(env, Random(1), lambda a, b: 0.001)
    client, server = Process(env, "c"), Process(env, "s")
    there, here, wires = Recorder(), Recorder(), list[Wire | None]()
    network.listen("s:1", server, lambda wire: there)
    network.dial(client, "s:1", wires.append)
    env.run(lambda: bool(wires), 1.0)
    wire = wires[0]
    assert wire is not None
    wire.attach(here, dialler=True)
    return network, wire, here, there


def test_a_wait_until_a_time_of_a_skewed_clock_ends() -> None:
    rng = Random(7)

    async def until(process: Process, deadline: float, signal: Signal) -> None:
        while process.now < deadline:
            await process.wait(signal, deadline - process.now)

    for number in range(2_000):
        env = Environment(Trace(), steps_max=100)
        process = Process(env, f"p{number}")
        process.skew, process.offset = rng.uniform(-0.1, 0.1), rng.uniform(-1.0, 1.0)
        deadline = rng.uniform(1.0, 50.0)
        waiting = process.start("wait", until(process, deadline, Signal()))
        assert env.run(lambda waiting=waiting: waiting.done, 100.0)
        assert deadline <= process.now < deadline + 1e-6


def test_messages_come_in_order_and_then_the_end(env: Environment) -> None:
    _, wire, here, there = connected(env)
    for number in range(50):
        wire.send(number, dialler=True)
    wire.close(dialler=True)
    env.run(never, 2.0)
    assert there.items == list(range(50))
    assert there.over
    assert not here.over, "the end that closes is not notified"


def test_a_blocked_direction_delays_and_loses_nothing(env: Environment) -> None:
    network, wire, here, there = connected(env)
    network.block(("c", "s"))
    for number in range(5):
        wire.send(number, dialler=True)
        wire.send(number, dialler=False)
    env.run(never, 2.0)
    assert there.items == []
    assert here.items == [0, 1, 2, 3, 4], "the other direction is open"
    network.unblock(("c", "s"))
    env.run(never, 3.0)
    assert there.items == [0, 1, 2, 3, 4]


def test_a_reset_loses_the_last_items_in_flight_and_notifies_both_ends(env: Environment) -> None:
    _, wire, here, there = connected(env)
    for number in range(20):
        wire.send(number, dialler=True)
    wire.reset()
    env.run(never, 2.0)
    assert there.items == list(range(len(there.items)))
    assert here.over
    assert there.over


def test_a_power_cut_is_reported_only_when_the_machine_is_up_again(env: Environment) -> None:
    network, wire, here, _ = connected(env)
    network.process_died(wire.processes[1], power=True)
    wire.send(1, dialler=True)
    env.run(never, 60.0)
    assert not here.over
    network.power_back("s:1")
    env.run(never, 61.0)
    assert here.over


def test_inspecting_a_disk_makes_no_disk_call() -> None:
    """So a power cut at a certain call happens in the server, never in the nemesis or an oracle."""
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


def test_trio_sleeps_on_the_clock_of_the_process_that_runs() -> None:
    env = Environment(Trace())
    slept: list[float] = []

    async def work() -> None:
        await trio.sleep(5.0)
        slept.append(env.now)

    with sleeping_virtually():
        Process(env, "one").start("work", work())
        assert env.run(lambda: bool(slept), 10.0)
        trio.run(trio.sleep, 0.0)
    assert slept == [5.0]
