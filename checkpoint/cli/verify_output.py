"""`dos checkpoint verify`: compare output files with the digests that a checkpoint has of them.

A reset reads only the end of each file (decision 0224); this command reads all of it. It may run while the
region writes, because a file below the size in a committed checkpoint never changes.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.cli.arguments import RegionName, checkpoint_of, complete_checkpoint, in_store
from checkpoint.core.manifest import Checkpoint
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    AsJson,
    StoreUrl,
    TokenFile,
    bar_of,
    fail,
    print_json,
    print_table,
)
from dos_protocol.digests import PrefixDigest

_read_bytes: Final = 1024 * 1024


class OutputFileEntry(msgspec.Struct, frozen=True):
    """The entry of a sink that writes a file, in one worker's part of a checkpoint."""

    file: str
    size: int
    digest: int


def parts_of(checkpoint: Checkpoint, sink: str) -> dict[int, OutputFileEntry]:
    """Return worker -> the file of a sink in a checkpoint; none for a sink that writes no such files."""
    found = {}
    for worker, part in sorted(checkpoint.outputs().items()):
        try:
            found[worker] = msgspec.convert(part.sinks.get(sink), OutputFileEntry)
        except msgspec.ValidationError:
            continue
    return found


def verify_part(path: Path, part: OutputFileEntry, *, quiet: bool = True) -> str:
    """Read a file up to the size in a checkpoint. Return what is wrong with it, empty if nothing is."""
    digest = PrefixDigest()
    try:
        with path.open("rb") as file, bar_of(str(path), quiet=quiet) as show:
            while digest.size < part.size:
                block = file.read(min(_read_bytes, part.size - digest.size))
                if not block:
                    return f"it has {digest.size} bytes, the checkpoint has {part.size}"
                digest.update(block)
                show(digest.size, part.size)
    except OSError as error:
        return f"it cannot be read on this host: {error.strerror}"
    if digest.value != part.digest:
        return f"its first {part.size} bytes have digest {digest.value:016x}, expected {part.digest:016x}"
    return ""


def verify(
    url: StoreUrl,
    name: RegionName,
    sink: Annotated[str, typer.Argument(help="The name of the FileSink in the graph.", metavar="SINK")],
    directory: Annotated[
        Path, typer.Argument(help="Its directory on this host.", metavar="DIRECTORY", exists=True)
    ],
    checkpoint: Annotated[
        int | None,
        typer.Option(
            help="Number of a checkpoint. Default: the last one.",
            autocompletion=complete_checkpoint,
            metavar="CHECKPOINT",
        ),
    ] = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Verify the files of a FileSink against a checkpoint, every byte. The region may be running.

    A reset verifies only the last 64 KiB of each file. This command finds damage anywhere before the size
    in the checkpoint. It reads the files of all workers; those of workers on other hosts must be in the same
    directory, or are reported as missing.

    Example: dos checkpoint verify dos://h1,h2,h3 wordcount out /data/counts

    Exit codes: 0 all files are as the checkpoint says, 1 a file is missing, shorter or different, or no such
    region, checkpoint or sink, 2 usage, 3 the store cannot be reached.
    """

    async def work(store: Store) -> Checkpoint:
        return checkpoint_of(await read_manifest(store, name), checkpoint)

    found = in_store(url, token_file, work)
    parts = parts_of(found, sink)
    if not parts:
        sinks = {one for part in found.outputs().values() for one in part.sinks if parts_of(found, one)}
        known = ", ".join(sorted(sinks)) or "none"
        text = (
            f"checkpoint {found.number} of {name} has no files of a sink {sink!r}; sinks with files: {known}"
        )
        fail(text, NEGATIVE)
    files = [
        {
            "worker": worker,
            "file": str(directory / part.file),
            "bytes": part.size,
            "problem": verify_part(directory / part.file, part, quiet=as_json),
        }
        for worker, part in parts.items()
    ]
    _report(found, files, as_json=as_json)


def _report(found: Checkpoint, files: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"checkpoint": found.number, "files": files})
    else:
        rows = [(one["worker"], one["file"], one["bytes"], one["problem"] or "verified") for one in files]
        print_table(("#worker", "file", "#bytes", "result"), rows)
    wrong = sum(bool(one["problem"]) for one in files)
    if wrong:
        fail(f"{wrong} of {len(files)} files are not as checkpoint {found.number} says", NEGATIVE)
