"""`dos sites apply`, `status`, `gc`, `revive` and `forget` on real servers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from dos_client import QuorumUnavailableError, Store, open_store
from dos_client.cli.kit import Call, ProgressDisplay
from dos_server.testing import memory_store, threaded_store
from journal import UnsettledStateError
from sites import cli, deploying
from sites.core.collection import Collected, Kept
from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.description import Description, decode_description
from sites.core.observed import SiteReport, StreamReport
from sites.errors import CannotReviveError, NotDeployedError
from sites.records import ReaderReporter, change_deployed, now_ms, read_deployed, write_report
from tests.sites.deployments import EXAMPLE
from tests.support.dos_command import dos
from tests.support.site_tables import names_in, rows_of

DESCRIPTION = msgspec.structs.replace(
    decode_description(EXAMPLE), application="board", entry_store="dos://here", kmax=3, theta=400.0
)
EVERY = {
    f"{sender}@{here} -> {reader}@{there}"
    for sender, here, reader, there in (
        *(("loads", "purdue", "joined", site) for site in ("purdue", "wisc", "osu")),
        *(("joined", site, "board", "osu") for site in ("purdue", "wisc", "osu")),
    )
}


async def report_all(store: Store, description: Description, **lateness: float) -> None:
    """Every reader reports that all it reads is alive and whole; `lateness` by site of the sender."""
    deployed = await read_deployed(store, description.application)
    for reader in sorted({one.reader for one in deployed.streams}):
        seen = [
            StreamReport(
                sender=one.sender,
                ranks=(9,) if one.sender.site == reader.site else (0, 9),
                mark=7,
                moved_s=1.0,
                late_s=lateness.get(one.sender.site, 0.25),
                whole=True,
            )
            for one in deployed.streams
            if one.reader == reader
        ]
        reporter = ReaderReporter(store, description.application, reader)
        await reporter.write(seen, mark=7, moved_s=1.0)


@pytest.mark.trio
async def test_what_is_applied_is_collected_and_revived() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        with pytest.raises(NotDeployedError, match="the application is not deployed"):
            await deploying.collect(store, DESCRIPTION)
        preview = await deploying.apply(store, DESCRIPTION, dry_run=True)
        assert (await read_deployed(store, "board")).number == 0
        change = await deploying.apply(store, DESCRIPTION)
        assert change == preview._replace(deployed=change.deployed)
        assert {str(one) for one in change.added} == EVERY
        assert not (await deploying.apply(store, DESCRIPTION)).changes
        kept = await deploying.collect(store, DESCRIPTION)
        assert isinstance(kept, Kept), "nobody has reported yet"
        assert "would get no rows" in kept.why
        await report_all(store, DESCRIPTION)
        found = await deploying.collect(store, DESCRIPTION, dry_run=True)
        assert found == await deploying.collect(store, DESCRIPTION)
        assert isinstance(found, Collected)
        assert found.replicas == (RegionReplica("joined", "wisc"),)
        now = await read_deployed(store, "board")
        assert now.number == 2
        assert now.decisions[-1].text.startswith(
            "collected joined@wisc -> board@osu, loads@purdue -> joined@wisc"
        )
        assert now.replicas == {"joined": ("purdue", "wisc", "osu")}
        assert isinstance(await deploying.collect(store, DESCRIPTION), Collected)
        assert await deploying.revive(store, DESCRIPTION) == []
        with pytest.raises(CannotReviveError, match="there is no replica joined@ohio"):
            await deploying.revive(store, DESCRIPTION, RegionReplica("joined", "ohio"))
        (made,) = await deploying.revive(store, DESCRIPTION, RegionReplica("joined", "wisc"))
        assert (made.way, made.started[0].checkpoint) == (2, RegionReplica("joined", "purdue"))
        soon = await deploying.collect(store, msgspec.structs.replace(DESCRIPTION, theta=0.0))
        assert isinstance(soon, Kept)
        assert "nothing is collected for 600 s" in soon.why


@pytest.mark.trio
async def test_a_late_port_gets_another_stream() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        await deploying.apply(store, DESCRIPTION)
        await report_all(store, DESCRIPTION)
        assert isinstance(await deploying.collect(store, DESCRIPTION), Collected)
        await report_all(store, DESCRIPTION, purdue=60.0, osu=60.0)
        found = await deploying.revive(store, DESCRIPTION)
        assert [(str(one.reader), one.node, one.way) for one in found] == [
            ("joined@osu", "loads", 0),
            ("joined@purdue", "loads", 0),
            ("board@osu", "joined", 2),
        ]
        assert {str(one) for one in (await read_deployed(store, "board")).streams} == EVERY
        again = await deploying.revive(store, DESCRIPTION, RegionReplica("board", "osu"))
        assert again == [], "a stream that was just revived is given time"


@pytest.mark.parametrize("seed", [1, 3, 5, 8])
def test_two_coordinators_at_once_decide_one_after_the_other(seed: int) -> None:
    """Both see three replicas, of which two are needed: the second decides for what the first has left. One
    that is fenced after it has written its decision knows whose it was.
    """
    description = msgspec.structs.replace(DESCRIPTION, theta=0.0, kmin=2)

    async def story() -> None:
        async with (
            memory_store(seed=seed) as servers,
            open_store(servers.url) as one,
            open_store(servers.url) as other,
        ):
            await deploying.apply(one, description)
            await report_all(one, description)
            results: list[Any] = []

            async def collect(store: Store) -> None:
                results.append(await deploying.collect(store, description))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(collect, one)
                nursery.start_soon(collect, other)
            assert sorted(type(result).__name__ for result in results) == ["Collected", "Kept"]
            deployed = await read_deployed(other, "board")
            assert (deployed.number, len(deployed.running())) == (2, 2)

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.trio
async def test_no_acknowledged_decision_is_lost_while_servers_crash(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Three processes decide at once, and one server after the other crashes and returns."""
    async with memory_store(seed=5) as servers:
        acknowledged: list[str] = []

        async def decide(name: str) -> None:
            async with open_store(servers.url) as store:
                for number in range(4):
                    mark = f"{name}{number}"

                    def add(one: Deployed, mark: str = mark) -> Deployed:
                        forgotten = tuple(sorted({*one.forgotten, mark}))
                        return msgspec.structs.replace(one, number=one.number + 1, forgotten=forgotten)

                    await change_deployed(store, "board", add, patience_s=600.0)
                    acknowledged.append(mark)

        async def crash() -> None:
            for number in range(9):
                await trio.sleep(0.3)
                servers[number % 3].crash()
                await trio.sleep(0.3)
                await servers[number % 3].restart()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            for name in ("a", "b", "c"):
                nursery.start_soon(decide, name)
        async with open_store(servers.url) as store:
            found = await read_deployed(store, "board")
        assert len(acknowledged) == 12
        assert found.forgotten == tuple(sorted(acknowledged))
        assert found.number == 12, "and none is made twice"


@pytest.mark.trio
async def test_a_first_decision_that_changes_nothing_leaves_nothing() -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        assert (await change_deployed(store, "board", lambda one: one)).number == 0
        assert (await read_deployed(store, "board")).number == 0

        def refuse(one: Deployed) -> Deployed:
            raise NotDeployedError(f"number {one.number}")

        with pytest.raises(NotDeployedError, match="number 0"):
            await change_deployed(store, "board", refuse)
        assert (await deploying.apply(store, DESCRIPTION)).deployed.number == 1
        with pytest.raises(NotDeployedError, match="number 1"):
            await change_deployed(store, "board", refuse)
        assert (await read_deployed(store, "board")).number == 1


@pytest.mark.trio
async def test_a_coordinator_without_a_majority_decides_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        await deploying.apply(store, DESCRIPTION)
        await report_all(store, DESCRIPTION)
        for number in (0, 1):
            servers[number].crash()
        with pytest.raises((QuorumUnavailableError, UnsettledStateError)):
            await deploying.collect(store, DESCRIPTION)
        with pytest.raises(QuorumUnavailableError):
            await change_deployed(store, "board", lambda one: msgspec.structs.replace(one, number=99))
        for number in (0, 1):
            await servers[number].restart()
        settled = await change_deployed(store, "board", lambda one: one)
        assert settled.number in (1, 99), "as it was, or as it was to be"


@pytest.mark.trio
async def test_a_forgotten_site_gets_no_replica_until_it_is_remembered() -> None:
    description = msgspec.structs.replace(DESCRIPTION, kmax=2)
    async with memory_store() as servers, open_store(servers.url) as store:
        await deploying.apply(store, description)
        assert (await read_deployed(store, "board")).replicas == {"joined": ("purdue", "wisc")}
        with pytest.raises(NotDeployedError, match="site 'ohio' is not described"):
            await deploying.forget(store, description, "ohio")
        found = await deploying.forget(store, description, "purdue")
        assert (len(found.removed), found.starving) == (2, ())
        await deploying.apply(store, description)
        assert (await read_deployed(store, "board")).replicas == {"joined": ("wisc", "osu")}
        await deploying.remember(store, description, "purdue")
        planned = await deploying.apply(store, description)
        assert planned.deployed.replicas["joined"] == ("purdue", "wisc", "osu"), (
            "osu stays until purdue has rows"
        )
        assert planned.kept
        await report_all(store, description)
        planned = await deploying.apply(store, description)
        assert planned.deployed.replicas["joined"] == ("purdue", "wisc")
        assert {str(one.sender) for one in planned.removed if one.reader.node == "board"} == {"joined@osu"}


@pytest.mark.trio
async def test_a_command_with_every_waits_between_its_runs(autojump_clock: trio.testing.MockClock) -> None:
    times = []

    async def once() -> None:
        times.append(trio.current_time())
        await trio.lowlevel.checkpoint()

    call = Call(ProgressDisplay("dos sites collect", quiet=True, on_terminal=False), None, False, 0.0, 0.0)
    with trio.move_on_after(650):
        await cli._repeat(call, 300.0, once)
    assert [time - times[0] for time in times] == [0, 300, 600]
    await cli._repeat(call, None, once)
    assert len(times) == 4


@pytest.fixture
def deployable(tmp_path: Path) -> Iterator[Path]:
    with threaded_store() as servers:
        file = tmp_path / "application.toml"
        top = f'application = "board"\nentry_store = "{servers.url}"\n'
        file.write_text(
            top + EXAMPLE.replace("kmax = 2", "kmax = 3").replace("theta = 30.0", "theta = 400.0")
        )
        yield file


def test_the_commands_show_what_they_do(deployable: Path) -> None:
    missing = dos("sites", "status", deployable)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "the application is not deployed (deploy it with `dos sites apply`)" in missing.stderr
    shown = dos("sites", "apply", deployable, "--dry-run")
    assert {line[2:] for line in shown.stdout.splitlines() if line.startswith("+ ")} == EVERY
    done = dos("sites", "apply", deployable)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown.stdout, "")
    assert "nothing to change" in dos("sites", "apply", deployable).stdout
    assert "nothing is collected: every group is needed" in dos("sites", "gc", deployable).stdout
    description = decode_description(deployable.read_text())

    async def report() -> None:
        async with open_store(description.entry_store) as store:
            await report_all(store, description)
            site = SiteReport(site="osu", at_ms=now_ms(), number=1, regions={"joined": "RUNNING"})
            await write_report(store, "board", site)

    trio.run(report)
    found = json.loads(dos("sites", "gc", deployable, "--json").stdout)
    assert found["stopped"] == ["joined@wisc"]
    assert len(found["removed"]) == 2
    status = dos("sites", "status", deployable)
    rows = [line.split() for line in status.stdout.splitlines()]
    assert ["joined@wisc", "collected", "yes", "-", "-", "no", "0", "-"] in rows
    assert "exit board: 0.2 s late" in status.stdout
    assert "last decision: collected joined@wisc -> board@osu" in status.stdout
    shown_json = json.loads(dos("sites", "status", deployable, "--json").stdout)
    by_site = {one["site"]: one for one in shown_json["replicas"]}
    assert by_site["osu"] | {"cost": 0} == {
        "region": "joined",
        "site": "osu",
        "state": "running",
        "alive": True,
        "lateS": 0.25,
        "first": 1.0,
        "whole": True,
        "cost": 0,
        "atSite": "RUNNING",
        "reason": None,
    }
    assert by_site["purdue"]["first"] == 0.0
    meanings = " ".join(row[-1] for row in rows_of("docs/reference/sites-status.csv"))
    described = names_in("sites-status") | {*re.findall(r"`(\w+)`", meanings)}
    for rows in (
        shown_json,
        *(shown_json[name][0] for name in ("replicas", "exits", "streams", "decisions")),
    ):
        assert rows.keys() <= described
    revived = dos("sites", "revive", deployable, "joined@wisc")
    assert revived.returncode == 0
    assert "starts joined@wisc; if it cannot continue, with a checkpoint of joined@" in revived.stdout
    assert dos("sites", "revive", deployable).stdout == "nothing is late\n"
    assert "- joined@osu -> board@osu" in dos("sites", "forget", deployable, "osu").stdout
    assert "site osu was forgotten" in dos("sites", "status", deployable).stderr
    measured = deployable.parent / "measured.toml"
    measured.write_text('[[streams]]\nfrom = "loads"\nto = "joined"\nbytes_per_s = 1.0\n')
    assert "not above theta" in dos("sites", "gc", deployable, "--measured", measured).stdout
    assert dos("sites", "forget", deployable, "osu", "--undo").returncode == 0
    assert dos("sites", "status", deployable).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "before", "after", "code", "words"),
    [
        (("status",), 'entry_store = "dos', 'entry_stor = "dos', 2, "unknown field `entry_stor`"),
        (("apply",), 'application = "board"', "", 2, "''"),
        (("apply",), 'name = "joined"', 'name = "a.b"', 2, "must lead from"),
        (("revive", "joined"), "", "", 2, "'joined' names no replica: write REGION@SITE"),
        (("gc",), "", "", 1, "the application is not deployed"),
        (("forget", "ohio"), "", "", 1, "site 'ohio' is not described"),
    ],
)
def test_a_command_that_is_refused_says_why(
    deployable: Path, arguments: tuple[str, ...], before: str, after: str, code: int, words: str
) -> None:
    text = deployable.read_text()
    assert before in text
    deployable.write_text(text.replace(before, after, 1) if before else text)
    done = dos("sites", arguments[0], deployable, *arguments[1:])
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_description_without_an_entry_store_is_for_plans_only(tmp_path: Path) -> None:
    file = tmp_path / "application.toml"
    file.write_text(EXAMPLE)
    done = dos("sites", "apply", file)
    assert done.returncode == 2
    assert "`entry_store` is missing" in done.stderr
