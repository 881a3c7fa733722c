"""`dos chaos`: faults on servers and disks, a verdict and a report.

A run takes the directories or the store, runs, and deletes or keeps what it wrote. Exit codes: 0 good, 1 a
violation or no recovery (the evidence is kept), 2 wrong usage or refused, 3 the servers of the store cannot
be reached, 130 interrupted (everything of the run is deleted).
"""

import json
import logging
import os
import platform
import random
import secrets
import shlex
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from dos_chaos import NotConvergedError, RunRefusedError
from dos_chaos.core.plan import DEFAULT_KINDS, KINDS, make_plan, problem_of
from dos_chaos.core.report import GOOD, ChaosResult, as_json, as_markdown
from dos_chaos.servers import KEPT, RUNNING, LocalServers, Place, PlaceInfo, take_places
from dos_chaos.story import ChaosRequest, ChaosRun, Ground
from dos_chaos.visited import VisitedStore
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Report,
    command,
    fail,
    parsed_url,
    until_interrupted,
    warn,
)
from dos_protocol.errors import DosError
from dos_protocol.limits import MIB

CLEANED_S: Final = 60.0
VOLATILE: Final = ("tmpfs", "ramfs")


def run_in_directories(paths: Sequence[Path], request: ChaosRequest) -> ChaosResult:
    """Test the disks of these directories. If the result is bad, everything in them is kept, with the report.
    Raises RunRefusedError with nothing changed.
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
                    await ChaosRun(ground, request, result).run()
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
                await ChaosRun(ground, request, result).run()
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


SPACE_MIB_MIN: Final = 48
SPACE_MIB_MAX: Final = 4_096
MINUTES_MIN: Final = 0.1
MINUTES_MAX: Final = 24 * 60.0
SCHEME: Final = "dos://"

app = typer.Typer(pretty_exceptions_enable=False)


Targets = Annotated[
    list[str],
    typer.Argument(
        help="One to three directories, empty or not there yet, on the disks to test; or the URL of a store"
        " that holds nothing.",
        metavar="DIR... | STORE-URL",
    ),
]
Servers = Annotated[
    int | None,
    typer.Option(
        min=1, max=3, help="Servers to start, spread over the directories. Default 3.", show_default=False
    ),
]
Minutes = Annotated[
    float,
    typer.Option(
        min=MINUTES_MIN,
        max=MINUTES_MAX,
        help="Time of the faults. Recovery and comparison follow: seconds usually, 5 minutes at most.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Determines the faults and their order. Default: random.", show_default=False),
]
Faults = Annotated[
    str | None,
    typer.Option(
        help=f"Kinds of faults, of {', '.join(KINDS)}. Default {','.join(DEFAULT_KINDS)}.",
        metavar="KIND,...",
        show_default=False,
    ),
]
SpaceMib = Annotated[
    int,
    typer.Option(
        min=SPACE_MIB_MIN,
        max=SPACE_MIB_MAX,
        help="Disk space in MiB that all servers together may take. The writers are paced to fit.",
    ),
]
ReportFile = Annotated[
    Path | None, typer.Option(help="Write the report to this file, in Markdown.", metavar="FILE.md")
]
Discard = Annotated[
    bool,
    typer.Option("--discard", help="Delete what an earlier run left in these directories or this store."),
]


@command(app, "chaos")
def chaos(
    call: Call,
    targets: Targets,
    servers: Servers = None,
    minutes: Minutes = 2.0,
    seed: Seed = None,
    faults: Faults = None,
    space_mib: SpaceMib = 512,
    report: ReportFile = None,
    discard: Discard = False,
) -> Report:
    """Test disks, or a store, with faults: is anything lost that was acknowledged?

    With directories: starts its own servers in them, on loopback; kills and stops them, lets their disks
    appear full and slow; then reads every record back and compares all copies. Everything is deleted at the
    end, unless the verdict is bad.

    With the URL of a store: you break it, it checks. The command writes and reads; meanwhile kill servers,
    pull cables, fill disks. All servers must be back at the end. The store must hold nothing; what the run
    wrote is deleted.

    Exit code 0: good. 1: a violation, or no recovery; the evidence is kept. 2: refused. 130: interrupted.

    Example, disks: dos chaos /mnt/disk1/test /mnt/disk2/test /mnt/disk3/test --report chaos.md

    Example, the same faults again: dos chaos /mnt/disk1/test --seed 4711 --minutes 10

    Example, a store: dos chaos dos://h1:9999,h2:9999,h3:9999 --minutes 10
    """
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        fail(f"the report cannot be written to {report}: its directory does not exist", REFUSED)
    in_store = any(target.startswith(SCHEME) for target in targets)
    kinds = tuple(DEFAULT_KINDS if faults is None else dict.fromkeys(filter(None, faults.split(","))))
    request = ChaosRequest(
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        seconds=60 * minutes,
        space_bytes=space_mib * MIB,
        discard=discard,
        servers=3 if servers is None else servers,
        kinds=kinds,
        again="",
        quiet=call.as_json,
    )
    named = [target if target.startswith(SCHEME) else str(Path(target).absolute()) for target in targets]
    words = ["dos", "chaos", *named, "--minutes", f"{minutes:g}", "--space-mib", str(space_mib)]
    if in_store:
        result = _in_store(targets, request, words, call.token, given=servers is not None or bool(faults))
    else:
        result = _in_directories(targets, request, words, report, call.token_file)
    text = as_markdown(result)
    if report is not None:
        report.write_text(text)
    written = f"; report: {report}" if report is not None else ""
    kept = f"; evidence: {result.kept}" if result.kept else ""
    return Report(
        as_json(result),
        text.rstrip("\n"),
        0 if result.outcome == GOOD else NEGATIVE,
        f"verdict: {result.outcome}{written}{kept}",
    )


def _in_store(
    targets: list[str], request: ChaosRequest, words: list[str], token: bytes, *, given: bool
) -> ChaosResult:
    if len(targets) > 1:
        raise RunRefusedError("pass either directories or the URL of one store")
    if given:
        raise RunRefusedError(
            "--servers and --faults are for directories; in your store, you inject the faults"
        )
    if parsed_url(targets[0]).directory is not None:
        raise RunRefusedError(f"{targets[0]} names a directory; pass the servers alone")
    return run_in_store(targets[0], token, replace(request, again=shlex.join(words)))


def _in_directories(
    targets: list[str], request: ChaosRequest, words: list[str], report: Path | None, token_file: Path | None
) -> ChaosResult:
    if token_file is not None:
        raise RunRefusedError("--token-file is for the URL of a store; own servers on loopback need none")
    if len(targets) > request.servers:
        raise RunRefusedError(
            f"{len(targets)} directories for {request.servers} servers; pass at most {request.servers}"
        )
    if problem := problem_of(request.kinds, request.servers, request.seconds):
        raise RunRefusedError(problem)
    paths = [Path(target) for target in targets]
    if report is not None and any(report.resolve().is_relative_to(path.resolve()) for path in paths):
        raise RunRefusedError(f"the report {report} is inside of a tested directory; write it elsewhere")
    words += ["--servers", str(request.servers), "--faults", ",".join(request.kinds)]
    words += ["--seed", str(request.seed)]
    return run_in_directories(paths, replace(request, again=shlex.join(words)))
