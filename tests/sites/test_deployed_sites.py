"""Three sites as processes, as they are deployed: what they report themselves is what decisions rest on.

At each site a server of the entry store and one of its own store, an entry point, and the process with its
regions; the test is the coordinator and a producer. Each site, and the test, is in a network namespace of its
own where they can be had, and on loopback otherwise, without the site that is cut off. After each step the
exit has each row once: they are numbered, which is the oracle.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

import dos
from checkpoint import output_register
from checkpoint.chains.consumer_register import read_register
from dataflow.producing import EntryPoints
from dos_chaos.servers import ServerProcess, hold_port
from dos_client import Store, init_store, open_store
from dos_protocol.errors import DosError
from sites import deploying
from sites.core.collection import Collected
from sites.core.deployed import status_of
from sites.core.deployment import RegionReplica
from sites.core.description import Description, decode_description
from tests.hosts.network import Network, open_network
from tests.sites.deployments import shown
from tests.support.polling import POLL_S

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
WAIT_S = 90.0
LATE_S = 3.0
SITES = ("a", "b", "c")
DESCRIPTION = """
application = "board"
entry_store = "{entry}"
kmax = 2
kmin = {kmin}
theta = {theta}
late_s = {late}
distance_ms = 0
{sites}
{links}
[[sources]]
name = "loads"
site = "a"
[[exits]]
name = "board"
site = "c"
graph = "tests.sites.graphs:board"
workers = 1
[[regions]]
name = "joined"
load = 0.1
graph = "tests.sites.graphs:versioned"
workers = 1
[[streams]]
from = "loads"
to = "joined"
bytes_per_s = 20000.0
[[streams]]
from = "joined"
to = "board"
bytes_per_s = 1000.0
"""


@dataclass
class Sites:
    """The servers and processes, and what was sent. network: None on loopback."""

    folder: Path
    network: Network | None
    entry: list[ServerProcess]
    stores: dict[str, ServerProcess]
    points: dict[str, str]
    """Site -> address of its entry point."""
    processes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)
    sent: int = 0

    @property
    def entry_url(self) -> str:
        return "dos://" + ",".join(one.location for one in self.entry)

    def describe(self, *, busy: str = "", kmin: int = 2, theta: float = 1e9) -> Description:
        """Write the description that the site processes read, and return it. busy: a site without room."""
        sites = "".join(
            f'[[sites]]\nname = "{one}"\ncapacity = 4.0\nload = {3.9 * (one == busy)}\n'
            f'store = "{self.stores[one].url}"\n'
            for one in SITES
        )
        links = "".join(
            f'[[links]]\nbetween = ["{one}", "{other}"]\nlatency_ms = {ms}\n'
            for one, other, ms in (("a", "b", 1.0), ("a", "c", 10.0), ("b", "c", 10.0))
        )
        text = DESCRIPTION.format(
            late=LATE_S, entry=self.entry_url, kmin=kmin, theta=theta, sites=sites, links=links
        )
        (self.folder / "application.toml").write_text(text)
        return decode_description(text)

    def start(self, site: str, *more: str) -> None:
        peers = ",".join(address for name, address in self.points.items() if name != site)
        arguments = [str(self.folder / "application.toml"), site, self.points[site], peers, *more]
        command = [sys.executable, "-m", "tests.sites.site_program", *arguments]
        with (self.folder / f"{site}.log").open("ab") as log, inside(self.network, site):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[site] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n", (self.folder / f"{site}.log").read_text()[-3000:]

    def end(self, site: str, number: signal.Signals = signal.SIGINT) -> None:
        process = self.processes.pop(site)
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)


def inside(network: Network | None, place: str) -> Any:
    """Let this thread start processes at a place."""
    return nullcontext() if network is None else network.hosts[place].inside()


def namespaces(stack: ExitStack) -> Network | None:
    """Return the network of the sites and of the test, "m"; None if there can be none."""
    if os.geteuid() != 0:
        return None
    try:
        network = stack.enter_context(open_network())
    except pytest.skip.Exception:
        return None
    for place in (*SITES, "m"):
        network.add(place)
    stack.enter_context(network.hosts["m"].inside())
    return network


@contextmanager
def three_sites(folder: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        network = namespaces(stack)
        addresses = {site: network.hosts[site].address if network else "127.0.0.1" for site in SITES}

        def start(kind: str, site: str) -> ServerProcess:
            with inside(network, site):
                return ServerProcess(folder / f"{kind}-{site}", host=addresses[site], options=("--insecure",))

        def hold(site: str) -> str:
            with inside(network, site):
                held = stack.enter_context(hold_port(0, addresses[site]))
            return "{}:{}".format(*held.getsockname())

        with ThreadPoolExecutor(2 * len(SITES)) as pool:
            servers = [pool.submit(start, kind, site) for kind in ("entry", "store") for site in SITES]
            entry, stores = ([one.result() for one in kind] for kind in (servers[:3], servers[3:]))
            for server in (*entry, *stores):
                stack.enter_context(server)
            points = {site: hold(site) for site in SITES}
            sites = Sites(folder, network, entry, dict(zip(SITES, stores, strict=True)), points)
            urls = (sites.entry_url, *(one.url for one in stores))
            for made in [pool.submit(trio.run, init_store, url) for url in urls]:
                made.result()
            stack.callback(lambda: [sites.end(site, signal.SIGKILL) for site in [*sites.processes]])
            sites.describe()
            for started in [pool.submit(sites.start, site) for site in SITES]:
                started.result()
        yield sites


async def wait_until(what: str, reached: Callable[[], Awaitable[object]]) -> None:
    last: DosError | None = None
    with trio.move_on_after(WAIT_S):
        while True:
            try:
                if await reached():
                    return
            except DosError as error:  # a server starts
                last = error
            await trio.sleep(4 * POLL_S)
    raise AssertionError(f"waited {WAIT_S:g} s until {what}") from last


class Story:
    """The test as it goes on. entry: the entry store, as the coordinator has it open."""

    def __init__(self, sites: Sites, entry: Store, producer: dos.Producer) -> None:
        self.sites, self.entry, self.producer = sites, entry, producer
        self.description = sites.describe()

    async def send(self, rows: int = 20) -> None:
        first = self.sites.sent
        self.sites.sent += rows
        await self.producer.send([{"word": f"{number}"} for number in range(first, self.sites.sent)])

    async def shown(self) -> "Counter[str]":
        async with open_store(self.sites.stores["c"].url) as store:
            return Counter(row["word"] for row in await shown(store, "board.board"))

    async def reach(self) -> None:
        """Send rows, and wait until the exit has all that were sent, each once."""
        await self.send()
        await self.producer.wait_recorded()
        expected = Counter(f"{number}" for number in range(self.sites.sent))

        async def reached() -> bool:
            found = await self.shown()
            assert not found - expected, f"doubled or made up: {found - expected}"
            return found == expected

        await wait_until(f"the exit has {self.sites.sent} rows", reached)

    async def replicas(self) -> dict[str, dict[str, object]]:
        now, readers, sites = await deploying.look(self.entry, self.description, measure=False)
        found = status_of(now, readers, sites)
        exits = {one["name"]: one for one in found["exits"]}
        return {one["site"]: one for one in found["replicas"]} | exits

    async def until_whole(self, *sites: str) -> None:
        """Wait until these sites have replicas that run, are alive, whole, and in time, by their reports."""

        async def reached() -> bool:
            now = await self.replicas()
            return all(
                now[site]["atSite"] == "RUNNING" and now[site]["alive"] and now[site]["whole"]
                for site in sites
            ) and not await deploying.revive(self.entry, self.description, dry_run=True, measure=False)

        await wait_until(f"{sites} are whole", reached)

    async def until_late(self, site: str, *, late: bool) -> None:
        async def reached() -> bool:
            return (float(str((await self.replicas())[site]["lateS"])) > LATE_S) == late

        await wait_until(f"{site} is {'late' if late else 'in time'}", reached)

    async def readers_at(self, site: str) -> list[str]:
        async with open_store(self.sites.stores[site].url) as store:
            return sorted((await read_register(store, output_register("board.joined", "shown"))).queries)


@pytest.mark.long  # the other files show its parts
def test_three_sites_are_deployed_and_live_through_what_happens_to_sites(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        trio.run(live, sites)


async def live(sites: Sites) -> None:
    points = EntryPoints(",".join(sites.points[site] for site in ("b", "c", "a")))
    async with (
        open_store(sites.entry_url) as entry,
        dos.open_producer(points, "board", "loads", "p", "word string") as producer,
    ):
        story = Story(sites, entry, producer)
        for step in (deployed, cut_off, outage, replaced, collected, revived, founded_again, differing):
            begun = trio.current_time()
            await step(story)
            print(f"{step.__name__}: {trio.current_time() - begun:.1f} s", flush=True)


async def deployed(story: Story) -> None:
    """Two replicas run, by their own reports: nothing is late, and none is needed beside them."""
    await deploying.apply(story.entry, story.description, measure=False)
    await story.reach()
    await story.until_whole("a", "b")
    assert await deploying.revive(story.entry, story.description, measure=False) == []
    assert len(await story.readers_at("a")) == 1


async def cut_off(story: Story) -> None:
    """A site is cut off: the rows of its producers come by another one. Then it is back, and whole again."""
    if (network := story.sites.network) is None:
        return
    network.unplug(network.hosts["b"])
    await story.reach()
    await story.until_late("b", late=True)
    network.plug(network.hosts["b"])
    await story.until_late("b", late=False)
    await story.until_whole("a", "b")


async def outage(story: Story) -> None:
    """The entry store has no majority for a while: the producer waits, and all rows come afterwards."""
    for server in story.sites.entry[:2]:
        server.kill()
    await story.send()
    with trio.move_on_after(4.0) as waited:
        await story.producer.wait_recorded()
    assert waited.cancelled_caught
    for site, server in [*zip(SITES, story.sites.entry, strict=True)][:2]:
        with inside(story.sites.network, site):
            server.restart()
    await story.reach()


async def replaced(story: Story) -> None:
    """A replica that is not planned any more is removed when the new one is whole, not before."""
    story.description = story.sites.describe(busy="a")  # b and c remain
    change = await deploying.apply(story.entry, story.description, measure=False)
    assert (len(change.removed), len(change.kept)) == (0, 2), change
    await story.until_whole("a", "b", "c")
    change = await deploying.apply(story.entry, story.description, measure=False)
    assert {str(one.sender) for one in change.removed} == {"joined@a", "loads@a"}, change

    async def withdrawn() -> bool:
        return not await story.readers_at("a")

    await wait_until("nothing is kept at a", withdrawn)
    await story.reach()


async def collected(story: Story) -> None:
    """The costs are above theta: the reports allow one of the two replicas to be collected."""
    story.description = story.sites.describe(busy="a", kmin=1, theta=0.0)
    await story.until_whole("b", "c")
    made = list[Collected]()

    async def allowed() -> bool:  # not while the exit starts again, for example
        found = await deploying.collect(story.entry, story.description, measure=False)
        made.extend([found] if isinstance(found, Collected) else [])
        return bool(made)

    await wait_until("a replica is collected", allowed)
    assert [one.node for one in made[0].replicas] == ["joined"]
    await story.reach()


async def revived(story: Story) -> None:
    """The other one fails with its site process. The exit reports that it is late: the collected one runs."""
    (left,) = (await deploying.look(story.entry, story.description, measure=False))[0].deployed.running()
    assert left.site == "b", "the exit is at c"
    story.sites.end("b", signal.SIGKILL)
    await story.send()

    async def late() -> bool:
        made = await deploying.revive(story.entry, story.description, measure=False)
        return any(one.way == 2 and one.started[0].replica == RegionReplica("joined", "c") for one in made)

    await wait_until("the collected replica starts", late)
    await story.reach()


async def founded_again(story: Story) -> None:
    """One site is gone for ever. Another one has lost its disks: its store is founded again at its address,
    and the exit, which ran all the time, reads the new store.
    """
    sites = story.sites
    sites.end("a", signal.SIGKILL)
    sites.stores["a"].kill()
    await deploying.forget(story.entry, story.description, "a")
    server = sites.stores["b"]
    server.kill()
    shutil.rmtree(server.data)
    with inside(sites.network, "b"):
        server.restart()
    await init_store(server.url)
    sites.start("b")
    await deploying.apply(story.entry, story.description, measure=False)
    await story.until_whole("b", "c")
    await story.reach()


async def differing(story: Story) -> None:
    """One site has another version of the program: the exit ends, says why, and stays so."""
    story.sites.end("b")
    story.sites.start("b", "changed")
    before = await story.shown()

    async def failed() -> bool:
        await story.send(1)
        return "not started again" in str((await story.replicas())["board"]["reason"])

    await wait_until("the exit has failed", failed)
    shown = await story.shown()
    reports = set[int]()

    async def reported() -> bool:
        _, _, sites = await deploying.look(story.entry, story.description, measure=False)
        (report,) = [one for one in sites if one.site == "c"]
        assert report.regions["board"] == "FAILED"
        reports.add(report.at_ms)
        return len(reports) > 4

    await wait_until("it had the time to start again", reported)
    assert await story.shown() == shown
    assert before <= shown
