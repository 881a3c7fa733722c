"""The process at a site: what it starts and stops, and a real region that follows the deployment."""

import inspect
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import dos
from checkpoint.requests.client import RegionReader
from dos_client import Store, open_store
from sites import deploying, runner
from sites.core import site_work
from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica, StreamReplica
from sites.core.description import Description, ReplicatedRegion
from sites.core.site_work import SiteSteps, StartedReplica, contexts_at, steps
from sites.errors import GraphRefusedError
from sites.records import change_deployed, read_deployed, read_reports
from sites.runner import graph_of, run_site
from tests.sites import graphs
from tests.sites.deployments import (
    EXAMPLE,
    WAIT_S,
    States,
    deployed_at,
    described,
    send_and_count,
    stores,
    until_counted,
)
from tests.sites.graphs import SCHEMA
from tests.support.dos_command import dos as command
from tests.support.planted_source import planted

# --- what is to be done -------------------------------------------------------------------------------------


def check_steps() -> None:
    description = described()
    deployed = deployed_at(description, "purdue", "wisc")
    wanted = contexts_at(description, deployed, "purdue")
    assert contexts_at(description, deployed, "osu") == {}
    context = wanted["joined"]
    assert (context.name, context.store, context.entry_store) == (
        "board.joined",
        "dos://purdue",
        "dos://entry",
    )
    assert context.ports == {
        "loads": (site_work.PortStream(RegionReplica("loads", "purdue"), None, "dos://entry"),)
    }
    assert steps(wanted, {}) == SiteSteps((), ("joined",))

    def with_state(state: str, ended_s: float | None = None) -> dict[str, StartedReplica]:
        return {"joined": StartedReplica(context, state, ended_s)}

    for state in ("RUNNING", "WAITING_FOR_STORE"):
        assert steps(wanted, with_state(state)) == SiteSteps((), ())
    for state in ("STOPPED", "FENCED", "FINISHED"):
        assert steps(wanted, with_state(state, 1e9)) == SiteSteps((), ()), "it is not started again"
    assert steps(wanted, with_state("FAILED", 29.0)) == SiteSteps((), ())
    assert steps(wanted, with_state("FAILED", 30.0)) == SiteSteps(("joined",), ("joined",))
    differs = {"joined": StartedReplica(context, "FAILED", 1e9, differs=True)}
    assert steps(wanted, differs) == SiteSteps((), ()), "it would pass rows of both programs"
    assert steps({"joined": context._replace(ports={})}, differs).start == ("joined",)
    assert steps({}, with_state("RUNNING")) == SiteSteps(("joined",), ())
    collected = deployed_at(description, "wisc")
    assert contexts_at(description, collected, "purdue") == {}
    other = {"joined": context._replace(ports={})}
    assert steps(other, with_state("FENCED", 1.0)) == SiteSteps(("joined",), ("joined",))


def test_the_deployment_is_followed_and_what_others_ended_is_left() -> None:
    check_steps()


def test_a_port_names_the_stores_of_all_its_replicas() -> None:
    description = described()
    more = msgspec.structs.replace(
        description,
        regions=(*description.regions, ReplicatedRegion("shown")),
        streams=tuple(
            msgspec.structs.replace(one, reader="shown") if one.reader == "board" else one
            for one in description.streams
        ),
    )
    a, b, c = (
        RegionReplica("joined", "purdue"),
        RegionReplica("joined", "wisc"),
        RegionReplica("shown", "osu"),
    )
    streams = (
        StreamReplica(a, c),
        StreamReplica(b, c),
        StreamReplica(c, RegionReplica("board", "osu")),
    )
    deployed = Deployed(number=1, replicas={"joined": ("purdue", "wisc"), "shown": ("osu",)}, streams=streams)
    context = contexts_at(more, deployed, "osu")["shown"]
    assert [tuple(one) for one in context.ports["joined"]] == [
        (a, "board.joined", "dos://purdue"),
        (b, "board.joined", "dos://wisc"),
    ]


BUGS = {
    "a changed port is not noticed": ("if wanted.get(region) != one.context", "if region not in wanted"),
    "a failed region stays": ("and one.ended_s >= RETRY_S", "and False"),
    "a failed region is started at once": ("and one.ended_s >= RETRY_S", ""),
    "what another process runs is started": ('one.state == "FAILED" and', ""),
    "what differs is started again": ("and not one.differs", ""),
    "a changed region is stopped for good": ("{*wanted} - gone", "{*wanted} - {*running}"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planted(site_work, *BUGS[bug])
    for name in ("StartedReplica", "SiteSteps", "contexts_at", "steps"):
        monkeypatch.setitem(globals(), name, names[name])
    with pytest.raises(AssertionError):
        check_steps()


# --- graphs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (None, "region 'joined' names no graph"),
        ("tests.sites.graphs:none", "has no attribute 'none'"),
        ("tests.sites.no_graphs:words", "No module named 'tests.sites.no_graphs'"),
        ("tests.sites.graphs:no_graph", "returned str, not a graph"),
        ("tests.sites.graphs:two_regions", "returned a graph of several regions"),
    ],
)
def test_a_graph_that_cannot_be_used_is_refused(graph: str | None, words: str) -> None:
    description = described()
    (context,) = contexts_at(description, deployed_at(description, "purdue"), "purdue").values()
    (region,) = description.regions
    changed = msgspec.structs.replace(description, regions=(msgspec.structs.replace(region, graph=graph),))
    with pytest.raises(GraphRefusedError, match=words):
        graph_of(changed, context)


# --- a real region ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forks")
def test_a_replica_runs_while_the_deployment_names_it_and_continues_after_a_revival() -> None:
    with stores(3) as (entry, own, wisc):
        description = described(entry, purdue=own, wisc=wisc)
        trio.run(follow, description, entry, own)


async def follow(description: Description, entry: str, own: str) -> None:
    states = States()
    start = partial(dos.run_local, standby=0)
    async with (
        open_store(entry) as store,
        open_store(own) as site_store,
        dos.open_producer(site_store, "board.joined", "loads", "p", SCHEMA) as producer,
        trio.open_nursery() as nursery,
    ):

        async def send(*words: str) -> None:
            await producer.wait_recorded(await producer.send([{"word": word} for word in words]))

        async def site() -> None:
            await run_site(description, "purdue", start=start, changed=states)

        nursery.start_soon(site)
        await states.until({})
        await deploying.apply(store, description)
        await states.until({"joined": "RUNNING"})
        await send("a", "b", "a")
        await until_counted(site_store, {"a": 2, "b": 1})
        every = (await read_deployed(store, "board")).streams
        without = tuple(
            one for one in every if all(end.site != "purdue" or end.node != "joined" for end in one)
        )
        await change_deployed(store, "board", lambda one: msgspec.structs.replace(one, streams=without))
        await states.until({})
        await send("b")
        await change_deployed(store, "board", lambda one: msgspec.structs.replace(one, streams=every))
        await states.until({"joined": "RUNNING"})
        await send("a")
        await until_counted(site_store, {"a": 3, "b": 2})
        await follow_wisc(description, store, start)
        _, (report, _) = await read_reports(store, description, await read_deployed(store, "board"))
        assert (report.site, set(report.regions)) == ("purdue", {"joined"})
        nursery.cancel_scope.cancel()


async def follow_wisc(description: Description, store: Store, start: Any) -> None:
    """A replica that the deployment starts with a checkpoint of purdue has all that purdue had counted."""
    states = States()

    def starts_from_purdue(one: Deployed) -> Deployed:
        return msgspec.structs.replace(one, starts={"joined@wisc": "joined@purdue"})

    await change_deployed(store, "board", starts_from_purdue)
    wisc = next(site.store for site in description.sites if site.name == "wisc")
    assert wisc is not None
    async with trio.open_nursery() as nursery, open_store(wisc) as site_store:

        async def site() -> None:
            await run_site(description, "wisc", start=start, changed=states)

        nursery.start_soon(site)
        await states.until({"joined": "RUNNING"})
        async with dos.open_producer(site_store, "board.joined", "loads", "p", SCHEMA) as producer:
            await producer.wait_recorded(await producer.send([{"word": "a"}]))
            await until_counted(site_store, {"a": 4, "b": 2})
        nursery.cancel_scope.cancel()


def test_the_command_runs_graphs_of_the_current_directory_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "own_graphs.py").write_text(Path(graphs.__file__).read_text())
    with stores(2) as (entry, own):
        file = tmp_path / "application.toml"
        text = EXAMPLE.replace('name = "purdue"\n', f'name = "purdue"\nstore = "{own}"\n')
        text = text.replace('name = "joined"\n', 'name = "joined"\ngraph = "own_graphs:words"\nworkers = 1\n')
        file.write_text(f'application = "board"\nentry_store = "{entry}"\n{text}')
        assert command("sites", "apply", file).returncode == 0
        arguments = [sys.executable, "-m", "dos_cli", "sites", "run", str(file), "--site", "purdue"]
        for count, (number, code) in enumerate(((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)), 1):
            with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                lines = iter(process.stdout.readline, "")
                assert any(line == "joined RUNNING\n" for line in lines)
                trio.run(send_and_count, own, count)
                process.send_signal(number)
                assert process.wait(WAIT_S) == code
            assert trio.run(last_state, own, "board.joined") == "STOPPED"


async def last_state(url: str, region: str) -> str:
    """As its driver wrote it when it ended."""
    async with open_store(url) as store:
        report = (await RegionReader(store, region).read()).last_report
        return "none" if report is None else str(report.result["state"])


def test_a_graph_that_raises_is_reported_and_the_site_goes_on() -> None:
    with stores(2) as (entry, own):
        description = described(entry, purdue=own)
        (region,) = description.regions
        broken = msgspec.structs.replace(region, graph="tests.sites.graphs:broken")
        trio.run(fails, msgspec.structs.replace(description, regions=(broken,)), entry)


async def fails(description: Description, entry: str) -> None:
    states = States()
    async with open_store(entry) as store, trio.open_nursery() as nursery:

        async def site() -> None:
            await run_site(description, "purdue", changed=states)

        await deploying.apply(store, description)
        nursery.start_soon(site)
        await states.until({"joined": "FAILED"})
        assert "joined" in (await read_deployed(store, "board")).replicas
        nursery.cancel_scope.cancel()


def test_a_region_on_spark_is_started_with_the_same_arguments() -> None:
    options = {"name": "board.joined", "store": "dos://here", "token": b"", "workers": 2}
    for start in (partial(dos.run, object()), dos.run_local):
        bound = inspect.signature(start).bind("a graph", **options)
        assert bound.arguments["graph"] == "a graph"


@pytest.mark.trio
async def test_while_the_entry_store_does_not_answer_regions_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = described()
    site: Any = runner._Site(None, description, "purdue", None, b"", lambda _: None)  # type: ignore[arg-type]
    before = site._deployed = deployed_at(description, "purdue")

    async def unavailable(*_: object) -> Deployed:
        await trio.lowlevel.checkpoint()
        raise dos.QuorumUnavailableError("nobody answers")

    monkeypatch.setattr(runner, "read_deployed", unavailable)
    await site._read()
    assert site._deployed is before


def test_a_site_without_a_store_or_on_spark_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "application.toml"
    text = 'application = "board"\nentry_store = "dos://127.0.0.1:1"\n' + EXAMPLE
    file.write_text(text)
    done = command("sites", "run", file, "--site", "purdue")
    assert done.returncode == 2
    assert "site 'purdue' has no store (add `store` to the site)" in done.stderr
    file.write_text(text.replace('name = "wisc"\n', 'name = "wisc"\nruns = "spark"\n'))
    done = command("sites", "run", file, "--site", "wisc")
    assert done.returncode == 2
    assert "start=partial(dos.run, spark)" in done.stderr
