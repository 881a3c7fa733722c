"""Three sites, each a host with a server of its own store, a server of the entry store, an entry point of
each input, and replicas of the regions (`site_query.py`); a host with producers; the exit at the last site.

Every host is `DELAY_S` away from a switch in the middle, so a round trip between two takes four times that.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.hosts.cluster import END_S_MAX, Process
from tests.hosts.network import Host, Network, open_network
from tests.hosts.site_process import PointOrder, ProducerOrder, RegionOrder, SiteOrder
from tests.hosts.site_query import BOARD, JOINED, READINGS, WHOLE
from tests.support.polling import until

DELAY_S = 0.005
ROUND_TRIP_S = 4 * DELAY_S
STORE_PORT, ENTRY_PORT = 9000, 9999
POINT_PORTS = {"inner": 7701, "outer": 7702, "latencies": 7703}
"""Handle -> the port of its entry points."""
INTERVAL_S = 0.25
"""The time between two readings of a server."""
ALL = ("s0", "s1", "s2")
"""The servers that are measured."""
SERVERS = len(ALL)
SERVERS_OF = {"inner": [0, 2], "outer": [1], "latencies": [0, 1, 2]}
"""Handle -> numbers of the servers whose readings enter there."""
ARRIVE_S_MAX = 150.0
DOS = (sys.executable, "-m", "dos_cli")
PROGRAM = (sys.executable, "-m", "tests.hosts.site_process")


class Pair(NamedTuple):
    """A row of the exit. arrived_s: the time of its step there; sent_s: when its later reading was sent."""

    server: str
    round: int
    sent_s: float
    arrived_s: float
    values: tuple[str, ...]


class Program:
    """A program of `site_process.py` with which lines are exchanged."""

    def __init__(self, host: Host, log: Path, *arguments: str) -> None:
        with log.open("ab") as file:
            self.process = host.popen(
                *PROGRAM, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )
        self.log = log
        self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next line. Raises RuntimeError if the program has ended."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the program has ended: {self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def finish(self) -> dict[str, Any]:
        """Order it to end, and return its last line."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self.answer()
        self.reap()
        return last

    def reap(self) -> None:
        """Wait for its end, for which its host or its order is the reason."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait(END_S_MAX)


class Sites:
    """The hosts and what runs on them: sites a, b and c, and m with the producers."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.sites = [network.add(name) for name in "abc"]
        self.meters = network.add("m")
        for host in network.hosts.values():
            self.slow_down(host)
        self.entry = "dos://" + ",".join(f"{host.address}:{ENTRY_PORT}" for host in self.sites)
        self.stores = {host.name: f"dos://{host.address}:{STORE_PORT}" for host in self.sites}
        self.processes: list[Process] = []
        self._shown: dict[str, list[Pair]] = {}
        self._programs: list[Program] = []

    @property
    def exit(self) -> Host:
        return self.sites[-1]

    def slow_down(self, host: Host, delay_s: float = DELAY_S, loss: float = 0.0) -> None:
        self.network.slow_down(host, delay_s=delay_s, loss=loss)

    # --- start --------------------------------------------------------------------------------------------

    def start(self) -> None:
        with ThreadPoolExecutor(12) as pool:
            for started in [pool.submit(self.start_servers, host) for host in self.sites]:
                started.result()
            urls = [(self.meters, self.entry), *((host, self.stores[host.name]) for host in self.sites)]
            for made in [pool.submit(host.run, *DOS, "store", "init", url) for host, url in urls]:
                made.result()
            reader = pool.submit(self._program, self.exit, "read", self.stores[self.exit.name])
            for started in [pool.submit(self.start_site, host) for host in self.sites]:
                started.result()
            self.reader = reader.result()
        self.start_producers()

    def start_servers(self, host: Host) -> None:
        """Start both servers of a site, on their disks if they have been there before."""
        for kind, port in (("own", STORE_PORT), ("entry", ENTRY_PORT)):
            data = ("--data", str(self.folder / f"{kind}-{host.name}"))
            listen = ("--listen", f"{host.address}:{port}", "--insecure", "--verbose")
            self._start(host, f"{kind}-server", "server id", *DOS, "serve", *data, *listen)

    def start_site(self, host: Host) -> None:
        """Start the entry points and the regions of a site, whose servers run."""
        points = [
            PointOrder(
                handle,
                host.address,
                port,
                [f"{other.address}:{port}" for other in self.sites if other is not host],
            )
            for handle, port in POINT_PORTS.items()
        ]
        order = SiteOrder(host.name, self.entry, points, self.regions(host))
        self._start(host, "site", '"started"', *PROGRAM, "site", msgspec.json.encode(order).decode())

    def regions(self, host: Host) -> list[RegionOrder]:
        """Replicas are at a and b; at c is the exit, and one that reads only the replica at a."""
        stores = {name: url for name, url in self.stores.items() if name != self.exit.name}
        if host is not self.exit:
            found = [(name, name, stores) for name in (READINGS, JOINED)]
        else:
            found = [("board", BOARD, stores), ("alone", BOARD, {"a": stores["a"]})]
        return [RegionOrder(name, graph, self.stores[host.name], sites) for name, graph, sites in found]

    def _start(self, host: Host, name: str, ready: str, *arguments: str) -> None:
        self.processes.append(Process(host, self.folder / f"{name}-{host.name}.log", ready, *arguments))

    def _program(self, host: Host, what: str, order: str) -> Program:
        program = Program(host, self.folder / f"{what}-{host.name}.log", what, order)
        self._programs.append(program)
        return program

    # --- rows ---------------------------------------------------------------------------------------------

    def start_producers(self) -> None:
        points = {
            handle: [f"{host.address}:{port}" for host in self.sites] for handle, port in POINT_PORTS.items()
        }
        order = msgspec.json.encode(ProducerOrder(SERVERS_OF, points, INTERVAL_S)).decode()
        self.producers = self._program(self.meters, "producers", order)

    def shown(self, region: str = "board") -> list[Pair]:
        """Return the rows of an exit so far."""
        found = self._shown.setdefault(region, [])
        for step_ms, *values in self.reader.ask(region)["rows"]:
            at = dict(zip(COLUMNS, values, strict=True))
            sent_us = max(int(at["sent_us"]), int(at["sent_us_right"]))
            pair = Pair(at["server"], int(at["round"]), sent_us / 1e6, step_ms / 1e3, tuple(values))
            found.append(pair)
        return found

    def reach(self, sent_s: float, servers: Sequence[str] = ALL, region: str = "board") -> list[Pair]:
        """Wait until an exit has rows of these servers that were sent at `sent_s` or later, and all before
        them. Return its rows, of which none is there twice.
        """

        def reached() -> bool:
            rows = self.shown(region)
            found = Counter((pair.server, pair.round) for pair in rows)
            assert not found or max(found.values()) == 1, f"doubled: {found.most_common(3)}"
            last = {name: max((row for row in rows if row.server == name), default=None) for name in servers}
            return all(
                row is not None
                and row.sent_s >= sent_s
                and all(found[name, number] for number in range(row.round))
                for name, row in last.items()
            )

        until(reached, f"{region} has what {servers} have sent", ARRIVE_S_MAX)
        return self.shown(region)

    def finish(self) -> int:
        """Let the producers end. Return the number of rounds that each has sent."""
        rounds: int = self.producers.finish()["rounds"]
        return rounds

    def restart(self, host: Host) -> None:
        """Start a site again, on its disks."""
        self.start_servers(host)
        self.start_site(host)

    def run_whole(self) -> None:
        """Run the query without replicas, over the same rows, as region READINGS of the exit's store."""
        region = RegionOrder(READINGS, WHOLE, self.stores[self.exit.name], {})
        order = msgspec.json.encode(SiteOrder("exit", self.entry, [], [region])).decode()
        self._start(self.exit, "whole", '"started"', *PROGRAM, "site", order)

    def close(self) -> None:
        for host in self.network.hosts.values():
            host.end()
        for process in self.processes:
            process.reap()
        for program in self._programs:
            program.reap()


COLUMNS = (
    *("at", "server", "round", "sent_us", "value"),
    *("at_right", "sent_us_right", "value_right"),
)


@contextmanager
def open_sites(folder: Path) -> Iterator[Sites]:
    """Sites that run. Everything is ended with them."""
    with ExitStack() as stack:
        network = stack.enter_context(open_network())
        sites = Sites(network, folder)
        stack.callback(sites.close)
        sites.start()
        yield sites
