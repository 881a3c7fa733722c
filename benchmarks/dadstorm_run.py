"""Measure the delivery of tuples, tuple by tuple and by step, in real processes that are connected by TCP.

benchmarks/dadstorm_run.py TUPLES ROUNDS KILLS [--only messages|bytes|seconds|killed]

Every replica, the source and the sink are processes of their own; by step, every worker is. TUPLES and
ROUNDS are those of the times; a replica is killed (SIGKILL) KILLS times with each semantics and number of
replicas. The last line is JSON, in which PER_STEP is 0 for tuple by tuple:

messages {"REPLICAS/PER_STEP": {message: sent by the replicas of the operators}} bytes
{"REPLICAS/ALGORITHM": [[bytes of a tuple, additional bytes sent for each tuple]]} seconds
{"REPLICAS/PER_STEP/TUPLE_BYTES/DELIVERY": [seconds]} killed {"REPLICAS/DELIVERY": [tuples of all runs,
missing, delivered again]}
"""

import argparse
import json
import multiprocessing
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dadstorm_node import HOST, NodeReport, Plan, serve  # noqa: E402
from dadstorm_tuples import NodeName  # noqa: E402
from rows import say  # noqa: E402

from dataflow.core.regions import DELIVERIES  # noqa: E402

REPLICAS = (2, 4)
PAPER_TUPLES = 100
STEPS_OF = (100, 10)
"""Tuples of a step, where messages are counted."""
TUPLE_BYTES = (100, 1_000)
"""Of the times: a small tuple, and ten times as much."""
SIZES = (16, 128, 1_024, 8_192)
"""Bytes of a tuple, of the bytes that are sent."""
WAIT_S_MAX = 60.0


class RunningNodes:
    """The processes of a run, connected to each other, and the connection to each of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.processes: dict[NodeName, multiprocessing.process.BaseProcess] = {}
        self.controls: dict[NodeName, TextIO] = {}

    def tell(self, node: NodeName, what: dict[str, Any]) -> None:
        """Send a line to a node. Raises OSError."""
        self.controls[node].write(json.dumps(what) + "\n")
        self.controls[node].flush()

    def line(self, node: NodeName) -> str:
        """Return the next line of a node. Raises RuntimeError if its process ended, TimeoutError."""
        line = self.controls[node].readline()
        if not line:
            raise RuntimeError(f"node {node} of {self.plan} ended")
        return line


def _serve(plan: Plan, node: NodeName, port: int) -> None:
    trio.run(serve, plan, node, port)


@contextmanager
def running(plan: Plan) -> Iterator[RunningNodes]:
    """Start the processes of a run, connect them, and kill them at the end. Raises as `RunningNodes.line`."""
    nodes = RunningNodes(plan)
    processes = multiprocessing.get_context("fork")  # imports are done; there are no threads here
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        listener.settimeout(WAIT_S_MAX)
        for node in plan.nodes():
            process = processes.Process(
                target=_serve, args=(plan, node, listener.getsockname()[1]), daemon=True
            )
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            nodes.processes[node] = process
        ports = []
        for _ in plan.nodes():
            connection, _ = listener.accept()
            connection.settimeout(WAIT_S_MAX)
            control = stack.enter_context(connection.makefile("rw"))
            connection.close()  # the file keeps it open
            hello = json.loads(control.readline())
            nodes.controls[NodeName(*hello["node"])] = control
            ports.append((hello["node"], hello["port"]))
        for node in plan.nodes():
            nodes.tell(node, {"ports": ports})
        for node in plan.nodes():
            nodes.line(node)
        yield nodes


def run(plan: Plan, victim: NodeName | None = None) -> dict[NodeName, NodeReport]:
    """Run a plan to the end and return the reports. `victim` is killed when the source has sent
    `plan.kill_at` tuples. Raises as `running`.
    """
    with running(plan) as nodes:
        for node in filter(plan.has_input, plan.nodes()):
            nodes.tell(node, {"do": "start"})
        living = plan.nodes()
        if victim is not None:
            nodes.line(living[0])
            nodes.processes[victim].kill()
            living.remove(victim)
        for node in living:  # from the source on: nothing more comes to a node from idle nodes above it
            dead = [victim] if victim in plan.neighbors(node) else []
            nodes.tell(node, {"do": "drain", "dead": dead})
            nodes.line(node)
        for node in living:
            nodes.tell(node, {"do": "report"})
        return {node: msgspec.json.decode(nodes.line(node), type=NodeReport) for node in living}


def delivered(reports: dict[NodeName, NodeReport]) -> Counter[int]:
    """Return how often each tuple was delivered."""
    return Counter(ident for report in reports.values() for ident in report.delivered)


def measured(plan: Plan) -> dict[NodeName, NodeReport]:
    """Run a plan without a loss. Raises RuntimeError if not every tuple is delivered once, and as `run`."""
    reports = run(plan)
    if delivered(reports) != Counter(range(plan.tuples)):
        raise RuntimeError(f"not every tuple was delivered once: {plan}")
    return reports


def sent(plan: Plan, name: str) -> Counter[str]:
    """Return what the replicas of the operators sent in a run: messages (`sent`) or bytes (`sent_bytes`)."""
    total: Counter[str] = Counter()
    for node, report in measured(plan).items():
        if 0 < node.operator <= plan.operators:
            total.update(getattr(report, name))
    return total


def seconds(plan: Plan) -> float:
    """Return the time from the first tuple that is read to the last one that is delivered."""
    reports = measured(plan).values()
    began = min(report.began for report in reports if report.began is not None)
    return max(report.ended for report in reports if report.ended is not None) - began


def measure_messages() -> dict[str, dict[str, int]]:
    """Count messages for the tuples, operators and replicas of table 1 of the paper."""
    return {
        f"{replicas}/{per_step}": sent(
            Plan(replicas, "exactly-once", PAPER_TUPLES, TUPLE_BYTES[0], per_step=per_step), "sent"
        )
        for replicas in REPLICAS
        for per_step in (0, *STEPS_OF)
    }


def measure_bytes() -> dict[str, list[tuple[int, float]]]:
    """Count the bytes that are sent for a tuple in addition to the tuple, for tuples of several sizes."""
    found: dict[str, list[tuple[int, float]]] = {}
    for replicas in REPLICAS:
        for size in SIZES:
            plan = Plan(replicas, "exactly-once", PAPER_TUPLES, size)
            by_tuple = sent(plan, "sent_bytes")
            confirmations = sum(n for name, n in by_tuple.items() if name.startswith("CONFIRM of"))
            confirmations -= by_tuple["CONFIRM of TUPLE"]
            everything = by_tuple.total() - by_tuple["TUPLE"]
            by_step = sent(replace(plan, per_step=PAPER_TUPLES), "sent_bytes")
            totals = {
                "records": everything - confirmations,
                "confirmed": everything,
                "mirror": sent(replace(plan, mirror=True), "sent_bytes")["RECORD"],
                "step": by_step.total() - by_step["DATA"],
            }
            for name, total in totals.items():
                found.setdefault(f"{replicas}/{name}", []).append((size, total / PAPER_TUPLES))
    return found


def measure_seconds(tuples: int, rounds: int) -> dict[str, list[float]]:
    """Measure times, with the three semantics alternately."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        say(f"times, round {number + 1} of {rounds}")
        for replicas in REPLICAS:
            for per_step in (0, PAPER_TUPLES):
                for size in TUPLE_BYTES:
                    for delivery in DELIVERIES:
                        plan = Plan(replicas, delivery, tuples, size, per_step=per_step)
                        name = f"{replicas}/{per_step}/{size}/{delivery}"
                        found.setdefault(name, []).append(seconds(plan))
    return found


def measure_kills(kills: int, tuples: int = 200) -> dict[str, list[int]]:
    """Kill a replica in the middle of a stream, another one each time, and count what was delivered.

    Raises RuntimeError if a semantics does not hold, and as `run`.
    """
    found = {}
    for replicas in REPLICAS:
        for delivery in DELIVERIES:
            missing, twice = [], []
            for number in range(kills):
                victim = NodeName(1 + number % 2, number // 2 % replicas)
                kill_at = tuples * (number + 1) // (kills + 1)
                plan = Plan(replicas, delivery, tuples, TUPLE_BYTES[0], window=16, kill_at=kill_at)
                counts = delivered(run(plan, victim))
                missing.append(tuples - len(counts))
                twice.append(counts.total() - len(counts))
            counted = f"{sum(missing)} missing, {sum(twice)} twice"
            say(f"{delivery}, {replicas} replicas, killed {kills} times: {counted}")
            if (any(missing) and delivery != "at-most-once") or (any(twice) and delivery != "at-least-once"):
                raise RuntimeError(f"{delivery} does not hold with {replicas} replicas: {counted}")
            found[f"{replicas}/{delivery}"] = [kills * tuples, sum(missing), sum(twice)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("tuples", "rounds", "kills"):
        parser.add_argument(name, type=int)
    parts = {
        "messages": measure_messages,
        "bytes": measure_bytes,
        "seconds": lambda: measure_seconds(options.tuples, options.rounds),
        "killed": lambda: measure_kills(options.kills),
    }
    parser.add_argument("--only", choices=parts, help="measure one of the four")
    options = parser.parse_args()
    figures: dict[str, Any] = {"tuples": options.tuples, "kills": options.kills}
    for name in [options.only] if options.only else parts:
        say(f"dadstorm: {name}")
        figures[name] = parts[name]()
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
