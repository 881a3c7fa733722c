"""Random damage, full disks, hung and refused members: fsck, the start, /readyz, status, the page, verify and
`store watch` give one verdict.

Servers are in threads, with real disks and sockets. A hung one is a socket that accepts and is silent, which
is what a stopped process is to its clients.
"""

import json
import logging
import random
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from dos_client import init_store
from dos_monitoring import HealthServer
from dos_protocol.errors import DosError
from dos_server.embedded import EmbeddedServer, OpenServer
from dos_server.figures import ServerFigures, registry_of
from dos_ui.app import PageKey
from dos_ui.serving import serve_page
from tests.dos_client.support import Threads, claimed, has, url_of
from tests.dos_client.test_cli import dos
from tests.dos_client.test_restored_disks import all_stamps_exchanged
from tests.dos_server.fsck.test_one_verdict import damage, flipped, is_damaged
from tests.support.http import fetch_url
from tests.support.polling import until
from tests.support.servers import hold_port

FAULTS: Final = ("none", "none", "damaged", "damaged", "full", "hung", "gone", "went back")
UNNOTICED: Final = ("witnessed", "lock")
"""Files whose loss nobody needs to notice."""
CONTENT: Final = bytes(range(256)) * 40
KEY: Final = "k" * 20
SEEDS: Final = (1, 3, 6, 13, 18, 25)
"""Chosen so that every fault occurs, alone and with others."""
STORIES: Final = (
    ("went back", "none", "gone"),  # two of three are enough to notice it
    ("went back", "went back", "gone"),  # two copies of one moment: nobody who knows more is there
    ("none", "claim", "gone"),
    ("none", "claim", "none"),
    ("claim", "full", "full"),
)
"""Always tried. `claim`: the file `.claim` of the directory is damaged."""


@dataclass
class Member:
    """One member, as it was started. `ready`: the address of its /readyz; None if nothing answers."""

    fault: str
    damage: str
    damaged: bool
    """What `dos fsck` says."""
    started: bool = False
    ready: str | None = None

    @property
    def answers(self) -> bool:
        return self.started and self.fault != "hung"

    @property
    def full(self) -> bool:
        return self.answers and self.fault == "full"


@contextmanager
def running(root: Path, port: int, fault: str, damage: str) -> Iterator[Member]:
    member = Member(fault, damage, is_damaged(root))
    with ExitStack() as stack:
        if fault == "hung":
            stack.enter_context(hold_port(port)).listen()
        elif fault != "gone":
            figures = ServerFigures("here")
            try:
                opened = OpenServer(
                    root, "127.0.0.1", port, figures=figures, reserve_bytes=(1 << 60) * (fault == "full")
                )
            except (DosError, OSError):
                yield member
                return
            health = HealthServer(
                registry_of(figures), "127.0.0.1", 0, hangs=figures.hangs, not_ready=figures.not_ready
            )
            member.ready = "http://{}:{}/readyz".format(*stack.enter_context(closing(health)).address)
            stack.enter_context(EmbeddedServer(opened))
            until(lambda: not figures.hangs(), "it serves", 60.0)
        member.started = fault != "gone"
        yield member


def page_of(servers: list[str]) -> dict[str, Any]:
    """What the page shows of the store."""

    async def read() -> dict[str, Any]:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                lambda task_status: serve_page(
                    servers, "127.0.0.1", 0, PageKey(KEY, read_only=True), task_status=task_status
                )
            )
            asked = urllib.request.Request(f"{address}/api/store", headers={"Authorization": f"Bearer {KEY}"})
            text = await trio.to_thread.run_sync(lambda: urllib.request.urlopen(asked, timeout=60).read())
            nursery.cancel_scope.cancel()
        return dict(json.loads(text))

    return trio.run(read)


def check_verdicts(members: list[Member], locations: list[str]) -> None:
    url = "dos://" + ",".join(locations)
    answering = [one for one in members if one.answers]
    noticed = len(answering) >= 2 and any(one.fault != "went back" for one in answering)
    accused = [one for one in answering if one.fault == "went back" and noticed]
    there = [one for one in answering if one not in accused]
    roomy, sound = [one for one in there if not one.full], [one for one in there if not one.damaged]
    usable, accepts, blocked = len(there) >= 2, len(roomy) >= 2, len(there) >= 2 > len(sound)
    whole = len(roomy) == len(sound) == 3
    code = 3 if not usable or not accepts or blocked else 0 if whole else 1
    for one in members:  # a server alone cannot know that its disk went back
        assert ready(one) == (0 if not one.answers else 503 if one.full else 200), "readyz"
    verified = dos("store", "verify", url)
    assert verified.code == code, verified
    for one in accused:  # the first client has told it; a server measures itself once a second
        until(lambda one=one: ready(one) == 503, "readyz", 60.0)  # type: ignore[misc]
    status = dos("store", "status", url, "--json")
    told = json.loads(status.stdout)
    assert status.code == code, status
    assert (told["usable"], told["whole"]) == (usable, whole), told
    assert (told["accepts_appends"], told["writers_wait"]) == (accepts, code == 3), told
    assert bool(told["blocked"]) == blocked, told
    assert bool(told["problems"]) or len(sound) == len(there) > 0, told
    page = page_of(locations)
    for name in ("usable", "whole", "accepts_appends", "blocked", "writers_wait", "verdict"):
        assert page[name] == told[name], (name, page)
    watched = dos("store", "watch", url, "--once", "--dry-run")
    seen = watched.stdout.decode() + watched.stderr
    repairs = usable and len(sound) < len(there)
    assert ("would repair" in seen) == repairs, seen
    assert watched.code == (3 if not usable else 1 if repairs or not accepts else 0), (watched.code, seen)
    if usable:
        assert ("writers wait" in seen) == (not accepts), seen
    for one in members:
        told_so = one.full or one in accused
        assert ready(one) == (0 if not one.answers else 503 if told_so else 200), "readyz"


def ready(one: Member) -> int:
    """The status code of /readyz; 0 if nothing answers."""
    return 0 if one.ready is None else fetch_url(one.ready)[0]


def written(three: Threads, older: list[Path], newer: list[Path]) -> None:
    """A store of two objects, and copies of its disks from before the second one and after it."""

    async def write(name: str, epoch: int) -> None:
        async with claimed(three, epoch=epoch) as (store, claim):
            writer = claim.open_object(name)
            await writer.wait_synced(writer.append(CONTENT))
            for server in three:
                await has(server, "d", name, CONTENT)
            await all_stamps_exchanged(store, three)

    trio.run(init_store, url_of(three))
    for epoch, (name, roots) in enumerate((("a", older), ("b", newer)), 1):
        for server in three:
            server.restart()
        trio.run(write, name, epoch)
        for server, root in zip(three, roots, strict=True):
            server.kill()
            shutil.copytree(server.data, root)


# EVIDENCE-OF: P-5
def test_every_place_gives_the_same_verdict(
    three: Threads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    older = [tmp_path / f"older-{number}" for number in range(3)]
    whole = [tmp_path / f"whole-{number}" for number in range(3)]
    written(three, older, whole)
    ports, locations = [one.address[1] for one in three], [one.location for one in three]
    for seed in [*SEEDS, *STORIES]:
        rng = random.Random(seed if isinstance(seed, int) else 0)
        faults = seed if isinstance(seed, tuple) else [rng.choice(FAULTS) for _ in range(3)]
        with ExitStack() as stack:
            members = []
            for number, fault in enumerate(faults):
                root = Path(shutil.copytree(whole[number], tmp_path / f"{len(list(tmp_path.iterdir()))}"))
                done = ""
                while fault == "damaged" and (not done or done.startswith(UNNOTICED)):
                    shutil.rmtree(root)
                    shutil.copytree(whole[number], root)
                    done = damage(root, rng)
                if fault == "went back":
                    shutil.rmtree(root)
                    shutil.copytree(older[number], root)
                if fault == "claim":
                    flipped(root / "d" / "d" / ".claim", rng)
                    done = "claim"
                members.append(stack.enter_context(running(root, ports[number], fault, done)))
            told = f"{seed}: {members}"
            for one in members:
                assert one.started or one.damaged or one.fault == "gone", f"{told}: fsck is silent"
            try:
                check_verdicts(members, locations)
            except AssertionError as error:
                raise AssertionError(f"{told}: {error}") from error
