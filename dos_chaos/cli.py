"""`dos chaos`: faults on servers and disks, a verdict and a report.

| exit code | meaning |
|---|---|
| 0 | good: nothing acknowledged is lost, nothing wrong was read, all copies are equal |
| 1 | a violation, or the store did not recover in time; the evidence is kept |
| 2 | wrong usage, or refused |
| 3 | the servers of the store cannot be reached |
| 130 | interrupted; everything of the run is deleted |
"""

import secrets
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from dos_chaos.command import ChaosRequest, run_in_directories, run_in_store
from dos_chaos.core.plan import DEFAULT_KINDS, KINDS, problem_of
from dos_chaos.core.report import GOOD, ChaosResult, as_json, as_markdown
from dos_chaos.errors import RunRefusedError
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    TokenFile,
    errors_end_command,
    exit_code,
    fail,
    fill_help,
    parsed_url,
    print_json,
    read_token,
    warn,
)
from dos_protocol.limits import MIB

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
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and no progress.")]


def chaos(
    targets: Targets,
    servers: Servers = None,
    minutes: Minutes = 2.0,
    seed: Seed = None,
    faults: Faults = None,
    space_mib: SpaceMib = 512,
    report: ReportFile = None,
    discard: Discard = False,
    as_json_: Json = False,
    token_file: TokenFile = None,
) -> None:
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
        quiet=as_json_,
    )
    named = [target if target.startswith(SCHEME) else str(Path(target).absolute()) for target in targets]
    words = ["dos", "chaos", *named, "--minutes", f"{minutes:g}", "--space-mib", str(space_mib)]
    with errors_end_command(exit_code):
        if in_store:
            result = _in_store(targets, request, words, token_file, given=servers is not None or bool(faults))
        else:
            result = _in_directories(targets, request, words, report, token_file)
    _show(result, report, as_json_=as_json_)


app.command()(chaos)
fill_help(app)


def _in_store(
    targets: list[str], request: ChaosRequest, words: list[str], token_file: Path | None, *, given: bool
) -> ChaosResult:
    if len(targets) > 1:
        raise RunRefusedError("pass either directories or the URL of one store")
    if given:
        raise RunRefusedError(
            "--servers and --faults are for directories; in your store, you inject the faults"
        )
    if parsed_url(targets[0]).directory is not None:
        raise RunRefusedError(f"{targets[0]} names a directory; pass the servers alone")
    return run_in_store(targets[0], read_token(token_file), request.with_again(shlex.join(words)))


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
    return run_in_directories(paths, request.with_again(shlex.join(words)))


def _show(result: ChaosResult, report: Path | None, *, as_json_: bool) -> None:
    text = as_markdown(result)
    if report is not None:
        report.write_text(text)
    if as_json_:
        print_json(as_json(result))
    else:
        print(text, end="", flush=True)
    written = f"; report: {report}" if report is not None else ""
    kept = f"; evidence: {result.kept}" if result.kept else ""
    warn(f"verdict: {result.outcome}{written}{kept}")
    if result.outcome != GOOD:
        sys.stdout.flush()
        raise typer.Exit(NEGATIVE)
