"""`dos files mirror`: keep a directory of a store as the mirror of a journaled directory on the local disk.

`chain_mirroring.py` mirrors a journal that consists of segments, `mirroring.py` one of a single file.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from dos_client import randomness
from dos_client.cli.kit import (
    REFUSED,
    AsJson,
    ProgressDisplay,
    TokenFile,
    fail,
    fill_help,
    parsed_url,
    print_json,
    print_result,
    read_token,
    run_interruptible,
)
from dos_client.store import open_store
from dos_client.urls import DosUrl
from journal.cli_arguments import journal_errors
from journal.files.chain_mirroring import ChainMirror, MirrorProgress
from journal.files.mirroring import Mirror, verify_copy
from journal.inspecting import local_chain
from journal.limits import mirror_poll_s
from journal.local_store import journal_beside

Report = Callable[[MirrorProgress], None]

app = typer.Typer(
    name="files",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Mirror journaled files on the local disk to a store.",
    epilog="Example:  dos files mirror ledger dos://h1,h2,h3/ledger",
)


@app.callback()
def _group() -> None:
    """Keep `mirror` a command of a group."""


@app.command()
def mirror(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The directory of the files, if its journal is DIR.journal; or the journal itself: a"
            " directory of segments, or a single file.",
        ),
    ],
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The directory of the store: dos://HOST,HOST2,HOST3/DIRECTORY"),
    ],
    once: Annotated[
        bool,
        typer.Option("--once", help="Copy what the journal has now, verify the whole copy, and end."),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Keep a directory of a store as the mirror of a journaled directory on this machine, until interrupted.

    The journal may be written meanwhile. The mirror is a journal of the store: `dos journal files`, `cat` and
    `replay` read it, and if this machine is lost, a program continues it elsewhere. The mirror may be ended
    and started again at any time, and servers may restart: it continues where the copy ends, after comparing
    digests. While it does not run, the journal keeps what is not copied yet.

    With --json, each line is the state after a step: the offset up to which the store has the journal
    (synced), and where the journal ends (end).

    Examples:

        dos files mirror ledger dos://h1,h2,h3/ledger

        dos files mirror --once --json ledger.journal dos://h1,h2,h3/ledger

    Exit codes: 0 copied and verified (--once), 1 the journal is damaged, 2 usage or refused: another journal
    or another writer has the directory, 3 the store cannot be reached, 130 interrupted.
    """
    parsed = parsed_url(url)
    if parsed.directory is None or parsed.object is not None:
        fail(f"{url} must name a directory of a store: dos://HOST,HOST2,HOST3/DIRECTORY", REFUSED)
    work = functools.partial(
        _mirror_file if _journal(directory).is_file() else _mirror_chain,
        *(_journal(directory), parsed, read_token(token_file)),
        once=once,
        as_json=as_json,
    )
    with journal_errors():
        done = run_interruptible(work)
    print_result(
        done,
        f"{done['segments']} segments, up to offset {done['synced']:,}: copied and verified on a quorum",
        as_json=as_json,
    )


def _journal(directory: Path) -> Path:
    """Return the journal that DIR names. End the command if there is none."""
    beside = journal_beside(directory)
    for one in (directory, beside):
        if one.is_file() or local_chain(str(one)) is not None:
            return one
    return fail(f"{directory} is no journal, and there is no journal {beside}", REFUSED)


async def _mirror_chain(
    journal: Path, url: DosUrl, token: bytes, *, once: bool, as_json: bool
) -> dict[str, Any]:
    chain = local_chain(str(journal))
    assert chain is not None, "checked before"
    with _reporting(url, as_json=as_json, once=once) as report:
        async with open_store(DosUrl(url.servers), token=token, client="dos files mirror") as store:
            with ChainMirror.open(journal, store, str(url.directory), chain) as copy:
                if not once:
                    await copy.run(report)
                try:
                    await copy.pass_on(report)
                    segments = await copy.verify()
                finally:
                    await copy.aclose()
    return {"journal": str(journal), "segments": segments, **copy.progress._asdict()}


async def _mirror_file(
    journal: Path, url: DosUrl, token: bytes, *, once: bool, as_json: bool
) -> dict[str, Any]:
    with _reporting(url, as_json=as_json, once=once) as report:
        async with open_store(DosUrl(url.servers), token=token, client="dos files mirror") as store:
            directory = str(url.directory)
            epoch = (await store.inspect(directory)).epoch_seen + 1
            async with await store.claim(directory, epoch, randomness.fresh_id()) as claim:
                copy = await Mirror.open(journal, store, claim, journal.name)
                while True:
                    grown = await copy.pass_on()
                    await copy.wait_synced(copy.size)
                    if grown:
                        report(MirrorProgress(copy.synced, copy.size))
                    if once:
                        break
                    if not grown:
                        await trio.sleep(mirror_poll_s)
            await verify_copy(store, directory, journal.name, copy.size, copy.digest)
    return {"journal": str(journal), "segments": 1, "synced": copy.synced, "end": copy.size}


@contextmanager
def _reporting(url: DosUrl, *, as_json: bool, once: bool) -> Iterator[Report]:
    """Yield the function that shows progress: a bar or lines of text, or lines of JSON unless `once`."""
    with ProgressDisplay(quiet=as_json) as display:
        text = f"{url} has"

        def show(progress: MirrorProgress) -> None:
            if as_json and not once:
                print_json(progress._asdict())
            display.show(text, progress.synced, progress.end)

        yield show


fill_help(app)
