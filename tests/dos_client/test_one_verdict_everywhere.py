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
from tests.dos_server.fsck.test_one_verdict import damage, is_damaged
from tests.support.http import fetch_url
from tests.support.polling import until
from tests.support.servers import hold_port

FAULTS: Final = ("none", "none", "damaged", "damaged", "full", "hung", "gone", "went back")
WENT_BACK: Final = ("stamps", "witnessed", "lock")
"""Files whose loss only other members notice, or nobody needs to."""
CONTENT: Final = bytes(range(256)) * 40
KEY: Final = "k" * 20
SEEDS: Final = (1, 3, 6, 13, 18, 25)
"""Chosen so that every fault occurs, alone and with others."""


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
    def there(self) -> bool:
        return self.answers and self.fault != "went back"

    @property
    def full(self) -> bool:
        return self.there and self.fault == "full"


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
    there, roomy = (
        [one for one in members if one.there],
        [one for one in members if one.there and not one.full],
    )
    usable = len(there) >= 2
    comparable = usable and sum(not (one.damaged and ".claim" in one.damage) for one in there) >= 2
    damaged = any(one.damaged for one in there)
    whole = len(roomy) == 3 and not damaged
    verified = dos("store", "verify", url)
    assert verified.code == (3 if not comparable else 0 if len(there) == 3 and not damaged else 1), verified
    status = dos("store", "status", url, "--json")
    told = json.loads(status.stdout)
    assert (told["usable"], told["whole"]) == (usable, whole), told
    assert told["accepts_appends"] == (len(roomy) >= 2), told
    assert status.code == (3 if not usable or len(roomy) < 2 else 0 if whole else 1), status
    assert comparable or told["problems"], told
    page = page_of(locations)
    for name in ("usable", "whole", "accepts_appends", "verdict"):
        assert page[name] == told[name], (name, page)
    watched = dos("store", "watch", url, "--once", "--dry-run")
    seen = watched.stdout.decode() + watched.stderr
    repairs = "would repair" in seen  # one action at a time: a watcher reports full disks after that
    assert (watched.code == 0) == (usable and (len(roomy) >= 2 or repairs)), (watched.code, seen)
    if usable and len(there) == 3 and len(roomy) >= 2:
        assert repairs == damaged, seen
        assert ("is full" in seen) == (len(roomy) == 2 and not damaged), seen

    for one in members:  # what others know of a server, clients have told it by now
        answer = 0 if one.ready is None else fetch_url(one.ready)[0]
        told_so = one.full or (usable and not one.there)
        assert answer == (0 if not one.answers else 503 if told_so else 200), "readyz"


def written(three: Threads, roots: list[Path]) -> None:
    async def write() -> None:
        await init_store(url_of(three))
        async with claimed(three) as (_, claim):
            for name in ("a", "b"):
                writer = claim.open_object(name)
                await writer.wait_synced(writer.append(CONTENT))
                for server in three:
                    await has(server, "d", name, CONTENT)

    trio.run(write)
    for server, root in zip(three, roots, strict=True):
        server.kill()
        shutil.copytree(server.data, root)


# EVIDENCE-OF: P-5
def test_every_place_gives_the_same_verdict(
    three: Threads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    whole = [tmp_path / f"whole-{number}" for number in range(3)]
    written(three, whole)
    ports, locations = [one.address[1] for one in three], [one.location for one in three]
    for seed in SEEDS:
        rng = random.Random(seed)
        faults = [rng.choice(FAULTS) for _ in range(3)]
        with ExitStack() as stack:
            members = []
            for number, fault in enumerate(faults):
                root = Path(shutil.copytree(whole[number], tmp_path / f"{seed}-{number}"))
                done = ""
                while fault == "damaged" and (not done or done.startswith(WENT_BACK)):
                    shutil.rmtree(root)
                    shutil.copytree(whole[number], root)
                    done = damage(root, rng)
                if fault == "went back":
                    (root / "stamps").unlink()
                members.append(stack.enter_context(running(root, ports[number], fault, done)))
            told = f"{seed}: {members}"
            for one in members:
                assert one.started or one.damaged or one.fault == "gone", f"{told}: fsck is silent"
            try:
                check_verdicts(members, locations)
            except AssertionError as error:
                raise AssertionError(f"{told}: {error}") from error
