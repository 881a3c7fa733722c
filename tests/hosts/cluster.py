"""A cluster on several hosts: three servers, Spark's standalone master and workers, and a driver.

Addresses are of every kind: servers listen on the wildcards of IPv4 and IPv6 and on a name, the URL of the
store has a name, an IPv6 and an IPv4 address, workers connect to the driver by name, and all but the last
host of executors advertise their second interface. All processes are real; a host is a set of
namespaces (`network.py`). The store is founded once, and one region after another runs in it.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyspark

from dataflow.worker.spec import ADVERTISE_HOST
from tests.hosts.driver import Order
from tests.hosts.network import Host, Network, open_network

STORE_PORT = 9999
MASTER_PORT = 7077
START_S_MAX = 120.0
END_S_MAX = 60.0
SPARK_HOME = Path(pyspark.__file__).parent


class Process:
    """A program on a host that is running once a line of its output contains `ready`."""

    def __init__(self, host: Host, log: Path, ready: str, *arguments: str, **env: str) -> None:
        self.host, self.log = host, log
        with log.open("ab") as file:
            self.process = host.popen(
                *arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**env}
            )
        self._wait_for(ready)

    def _wait_for(self, ready: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        follow = subprocess.Popen(
            ["tail", "--lines=+1", "--follow", f"--pid={self.process.pid}", str(self.log)],
            stdout=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(START_S_MAX, follow.kill)
        watchdog.start()
        try:
            assert follow.stdout is not None
            if not any(ready in line for line in follow.stdout):
                late = time.monotonic() > deadline
                raise RuntimeError(
                    f"{'no' if late else 'it ended without'} {ready!r}: {self.log.read_text()}"
                )
        finally:
            watchdog.cancel()
            follow.kill()
            follow.communicate()

    def reap(self) -> None:
        """Wait for the process, which has ended with its host."""
        self.process.wait(END_S_MAX)


class Driver:
    """A driver process on a host. Its events are passed to `take` in a thread."""

    def __init__(self, host: Host, master: str, folder: Path, take: Callable[[dict[str, Any]], None]) -> None:
        folder.mkdir(parents=True)
        self.host, self._take = host, take
        self.log = folder / "stderr.log"
        self._ready = threading.Event()
        with self.log.open("ab") as log:
            self.process = host.popen(
                *(sys.executable, "-m", "tests.hosts.driver", master, host.address, str(folder)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PYSPARK_PYTHON": sys.executable},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                if not line.startswith("{"):
                    continue  # output of Spark itself
                event = json.loads(line)
                if event["event"] == "ready":
                    self._ready.set()
                else:
                    self._take(event)
        self._ready.set()

    def order(self, order: Order) -> None:
        """Run a region. Raises RuntimeError if the driver does not start."""
        if not self._ready.wait(START_S_MAX) or self.process.poll() is not None:
            raise RuntimeError(f"the driver did not start: {self.log.read_text()[-3000:]}")
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the driver with its JVM."""
        self.host.signal("KILL", "tests.hosts.driver")
        self.host.signal("KILL", "org.apache.spark.deploy.SparkSubmit")
        self.process.wait(END_S_MAX)
        self._reader.join(END_S_MAX)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


class Region:
    """What is known of a running region: the events of its drivers. Times are monotonic seconds."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.changed = threading.Condition()
        self.checkpoints: list[float] = []
        self.hosts: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self.losses: list[str] = []
        self.resets: list[str] = []
        self.end: dict[str, Any] | None = None
        self.state, self.reason = "", ""

    def take(self, event: dict[str, Any]) -> None:
        with self.changed:
            if event["region"] == self.order.name:
                self._take(event)
            self.changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "checkpoint":
                self.checkpoints.append(time.monotonic())
            case "joined":
                self.hosts[event["worker"]] = event["host"]
                self.pids[event["worker"]] = event["pid"]
            case "lost":
                self.losses.append(event["reason"])
            case "reset":
                self.resets.append(event["reason"])
            case "state":
                self.state, self.reason = event["state"], event["reason"]
            case "end":
                self.end = event

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Wait for a condition on the events; return the seconds waited. Raises AssertionError when it is
        late.
        """
        begun = time.monotonic()
        with self.changed:
            while not condition():
                waited = time.monotonic() - begun
                assert waited < timeout_s, f"not {what} after {waited:.0f} s: {self!r}"
                assert self.end is None, f"the region ended before {what}: {self!r}"
                self.changed.wait(1)
        return time.monotonic() - begun

    def until_checkpoints(self, count: int, timeout_s: float = 120.0) -> float:
        """Wait until `count` more checkpoints are committed; return the seconds waited."""
        wanted = len(self.checkpoints) + count
        return self.until(lambda: len(self.checkpoints) >= wanted, f"{count} more checkpoints", timeout_s)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; return earlier if the region ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.end is not None, seconds)

    def finish(self, timeout_s: float = 180.0) -> None:
        """Let the region process the rest of its input quickly, and wait for its end."""
        Path(self.order.folder, "hurry").touch()
        with self.changed:
            self.changed.wait_for(lambda: self.end is not None, timeout_s)
        assert self.end is not None, f"the region did not end within {timeout_s:.0f} s: {self!r}"
        assert self.end["state"] == "FINISHED", repr(self)

    def __repr__(self) -> str:
        gap = time.monotonic() - self.checkpoints[-1] if self.checkpoints else float("inf")
        return (
            f"Region {self.order.name}: {self.state} {self.reason!r}, {len(self.checkpoints)} checkpoints,"
            f" the last {gap:.1f} s ago, hosts {self.hosts}, losses {self.losses}, resets {self.resets},"
            f" end {self.end}"
        )


class Cluster:
    """The hosts and what runs on them. s1 to s3: servers; m: master; w1, ...: executors; d: driver."""

    def __init__(self, network: Network, folder: Path, *, workers: int) -> None:
        self.network, self.folder = network, folder
        self.servers = [network.add(f"s{number}") for number in (1, 2, 3)]
        self.master = network.add("m")
        self.driver = network.add("d")
        self.workers = [network.add(f"w{number + 1}") for number in range(workers)]
        network.name_hosts(folder)
        one, two, three = self.servers
        self._listens = {one.name: "0.0.0.0", two.name: "[::]", three.name: three.name}
        addresses = (one.name, f"[{two.address6}]", three.address)
        self.store = "dos://" + ",".join(f"{address}:{STORE_PORT}" for address in addresses)
        self.master_url = f"spark://{self.master.address}:{MASTER_PORT}"
        self._processes: list[Process] = []
        self._running: Driver | None = None
        self._regions: list[Region] = []

    def start(self) -> None:
        for host in self.servers:
            self.start_server(host)
        self.dos("store", "init", self.store)
        deploy = "org.apache.spark.deploy"
        self._spark(
            self.master,
            "I have been elected leader",
            f"{deploy}.master.Master",
            *("--host", self.master.address, "--port", str(MASTER_PORT), "--webui-port", "0"),
        )
        for host in self.workers:
            self.start_worker(host)

    def start_server(self, host: Host) -> None:
        """Start the server of a host, on its disk if it has one."""
        listen = ("--listen", f"{self._listens[host.name]}:{STORE_PORT}", "--insecure")
        data = ("--data", str(self.folder / f"data-{host.name}"))
        command = (sys.executable, "-m", "dos_cli", "serve", *data, *listen, "--verbose")
        self._start(host, f"{host.name}.log", "server id", *command)

    def start_worker(self, host: Host) -> None:
        """Start Spark's worker of a host: one executor of one core."""
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{host.name}"))
        here = ("--host", host.address, "--port", "0", "--webui-port", "0")
        name = "org.apache.spark.deploy.worker.Worker"
        env = {} if host == self.workers[-1] else {ADVERTISE_HOST: host.back_address}
        self._spark(host, "Successfully registered with master", name, *here, *size, self.master_url, **env)

    def _spark(self, host: Host, ready: str, *arguments: str, **more_env: str) -> None:
        command = (str(SPARK_HOME / "bin" / "spark-class"), *arguments)
        env = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
        env |= more_env
        self._start(host, f"{host.name}-spark.log", ready, *command, **env)

    def _start(self, host: Host, log: str, ready: str, *arguments: str, **env: str) -> None:
        self._processes.append(Process(host, self.folder / log, ready, *arguments, **env))

    def dos(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run the `dos` command on the driver's host."""
        return self.driver.run(sys.executable, "-m", "dos_cli", *arguments, check=check)

    def run(self, name: str, rows: int, *, workers: int = 2, **options: Any) -> Region:
        """Start a region over `rows` rows and return when it has committed checkpoints."""
        folder = self.folder / name
        folder.mkdir()
        paths = []
        for part in range(workers):
            path = folder / f"in-{part}.txt"
            path.write_text("".join(f"k{n % 97} {n}\n" for n in range(part, rows, workers)))
            paths.append(str(path))
        options.setdefault("coordinator_address", self.driver.name)
        region = Region(Order(name, self.store, str(folder), paths, workers, options))
        self._regions.append(region)
        self.driving().order(region.order)
        region.until_checkpoints(3)
        return region

    def driving(self) -> Driver:
        """Return the driver, which is started if none runs."""
        if self._running is None or self._running.process.poll() is not None:
            folder = self.folder / f"driver-{time.monotonic_ns()}"
            self._running = Driver(self.driver, self.master_url, folder, self._event)
        return self._running

    def _event(self, event: dict[str, Any]) -> None:
        for region in self._regions:
            region.take(event)

    def output(self, region: Region) -> dict[str, int]:
        """Return the last count of each key, read from the store on the driver's host."""
        program = (
            "import sys, json; from dataflow import collect_output;"
            "table = collect_output(*sys.argv[1:], 'out');"
            "print(json.dumps(dict(zip(table['key'].to_pylist(), table['count'].to_pylist()))))"
        )
        done = self.driver.run(sys.executable, "-c", program, self.store, region.order.name)
        counts: dict[str, int] = json.loads(done.stdout)
        return counts

    def close(self) -> None:
        """End every host with its processes, and reap them."""
        if self._running is not None and not self.driver.ended:
            self._running.kill()  # after the loss of a host, Spark would take a minute to end its session
        for host in self.network.hosts.values():
            host.end()
        for process in self._processes:
            process.reap()


@contextmanager
def open_cluster(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """A running cluster. Everything is ended with it."""
    with ExitStack() as stack:
        network = stack.enter_context(open_network())
        cluster = Cluster(network, folder, workers=workers)
        stack.callback(cluster.close)
        cluster.start()
        yield cluster
