"""A run of the command: takes the directories or the store, runs, and deletes or keeps what the run wrote."""

import json
import logging
import os
import platform
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final

import trio

from dos_chaos.core.plan import make_plan
from dos_chaos.core.report import GOOD, ChaosResult, as_json, as_markdown
from dos_chaos.errors import NotConvergedError
from dos_chaos.local import LocalServers
from dos_chaos.places import KEPT, RUNNING, Place, PlaceInfo, take_places
from dos_chaos.story import ChaosRun, Ground, RunLimits
from dos_chaos.visited import VisitedStore
from dos_client.cli.kit import until_interrupted, warn
from dos_protocol.errors import DosError
from dos_protocol.limits import MIB

CLEANED_S: Final = 60.0
VOLATILE: Final = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """The options of a run. `again`: the command line that repeats it. `quiet`: no progress."""

    seed: int
    seconds: float
    space_bytes: int
    discard: bool
    servers: int
    kinds: tuple[str, ...]
    again: str
    quiet: bool

    def with_again(self, command: str) -> "ChaosRequest":
        return replace(self, again=command)

    @property
    def limits(self) -> RunLimits:
        return RunLimits(self.seconds, self.space_bytes)

    def say(self, line: str) -> None:
        """Show a line of progress."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)


def run_in_directories(paths: Sequence[Path], request: ChaosRequest) -> ChaosResult:
    """Test the disks of these directories.

    Everything in them is deleted if the result is good, or if the run is interrupted or fails to start.
    Otherwise it is kept, with the report in it. Raises RunRefusedError with nothing changed.
    """
    places = take_places(paths, space_bytes=request.space_bytes, discard=request.discard)
    result = ChaosResult(request.again)
    with removed_unless_kept(places, request.seed):
        for place in places:
            place.mark(RUNNING, request.seed)
        before = [place.info() for place in places]
        result.environment = [*versions(), *(_described(one) for one in before)]
        if volatile := [one.path for one in before if one.file_system in VOLATILE]:
            result.notes.append(f"{', '.join(volatile)} is in memory: this run tests no disk.")
        plan = make_plan(request.kinds, request.servers, request.seconds, random.Random(request.seed).random)  # noqa: S311
        ground = LocalServers(places, request.servers, plan)
        request.say(
            f"{request.servers} servers in {', '.join(str(place.path) for place in places)};"
            f" {len(plan)} {'fault' if len(plan) == 1 else 'faults'} in {request.seconds / 60:g} minutes,"
            f" seed {request.seed};"
            f" at most {request.space_bytes // MIB} MiB"
        )

        async def work() -> None:
            try:
                await ground.start()
                with client_log(ground.evidence / "client.log"):
                    await ChaosRun(ground, request.limits, request.seed, result, request.say).run()
            finally:
                with trio.CancelScope(shield=True):
                    await ground.end()

        _run(work, request.say)
        if missing := [kind for kind in request.kinds if kind not in {one.kind for one in result.faults}]:
            result.notes.append(f"no time was left for {', '.join(missing)}: pass more --minutes.")
        if result.outcome != GOOD:
            result.kept = ", ".join(str(place.path) for place in places)
            _keep_report(ground, result)
            for place in places:
                place.mark(KEPT, request.seed)
    return result


@contextmanager
def removed_unless_kept(places: Sequence[Place], seed: int) -> Iterator[None]:
    """Delete what a run wrote, unless it marked that as evidence, or an unexpected error ended it."""
    kept = True
    try:
        yield
        kept = any(place.state == KEPT for place in places)
    except (KeyboardInterrupt, DosError):
        kept = False
        raise
    finally:
        for place in places:
            if not kept:
                place.remove()
                continue
            if place.state != KEPT:
                place.mark(KEPT, seed)
            place.close()


def run_in_store(url: str, token: bytes, request: ChaosRequest) -> ChaosResult:
    """Check a store while its user breaks it. What the run wrote is deleted, unless the result is bad."""
    evidence = Path(tempfile.mkdtemp(prefix="dos-chaos-"))
    result = ChaosResult(request.again)
    result.environment = versions()
    ground = VisitedStore(url, token, evidence, discard=request.discard)

    async def work() -> None:
        try:
            await ground.start()
            result.environment.append(("store", ground.description))
            request.say(
                f"{ground.description}: break it now, for {request.seconds / 60:g} minutes;"
                " all servers must be back at the end"
            )
            with client_log(evidence / "client.log"):
                await ChaosRun(ground, request.limits, request.seed, result, request.say).run()
            if result.outcome != GOOD:
                result.kept = str(evidence)
                result.notes.append(
                    f"the objects of this run are still in the store, in {ground.prefix}*; the next run"
                    " deletes them if --discard is passed."
                )
                _keep_report(ground, result)
        finally:
            if not result.kept:
                with trio.CancelScope(shield=True):
                    await _cleaned(ground, result)

    try:
        _run(work, request.say)
    finally:
        if not result.kept:
            for path in evidence.iterdir():
                path.unlink()
            evidence.rmdir()
    return result


async def _cleaned(ground: VisitedStore, result: ChaosResult) -> None:
    """Delete the run's objects from the store; a store that does not answer keeps them, which is reported."""
    try:
        with trio.fail_after(CLEANED_S):
            await ground.delete()
    except (DosError, NotConvergedError, trio.TooSlowError) as error:
        text = (
            f"objects of this run are left in the store ({ground.prefix}*), because they could not be"
            f" deleted: {error}. Run the command again with --discard to delete them"
        )
        result.notes.append(text)
        warn(text)


def _keep_report(ground: Ground, result: ChaosResult) -> None:
    (ground.evidence / "report.md").write_text(as_markdown(result))
    (ground.evidence / "report.json").write_text(json.dumps(as_json(result), indent=1))


def versions() -> list[tuple[str, str]]:
    """Return the versions of what ran."""
    return [
        ("dos", metadata.version("dos-journal")),
        ("Python", platform.python_version()),
        ("kernel", f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"),
    ]


def _described(info: PlaceInfo) -> tuple[str, str]:
    median, longest = info.sync_ms
    return info.path, (
        f"{info.file_system} on {info.device} ({info.options}), {info.free_bytes // MIB:,} MiB free before;"
        f" a synced write of 4 KiB takes {median:.2f} ms, at most {longest:.1f} ms"
    )


@contextmanager
def client_log(path: Path) -> Iterator[None]:
    """Write the log of the client to a file: with faults, it has many lines."""
    logger, handler = logging.getLogger("dos"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
        handler.close()


def _run(work: Callable[[], Awaitable[None]], say: Callable[[str], None]) -> None:
    def report(_: int) -> None:
        say("interrupted: everything of this run is deleted now")

    trio.run(until_interrupted, work, report, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
