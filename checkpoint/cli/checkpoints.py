"""`dos checkpoint`: the committed checkpoints of a region, from its manifest.

The commands only read the store: they claim nothing and send no request to a driver. A reset reads only the
end of each output file (decision 0224); `dos checkpoint verify` reads all of it. It may run while the region
writes, because a file below the size in a committed checkpoint never changes.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import trio
import typer

from checkpoint.chains.manifest_log import read_manifest
from checkpoint.cli.arguments import RegionName, add, checkpoint_of, complete_checkpoint
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.records.views import checkpoint_diff, checkpoint_full, checkpoint_row
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    Call,
    Report,
    StoreUrl,
    clock_text,
    count_text,
    fail,
    print_table,
    seconds_text,
    warn,
)
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import DosError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Show, compare and verify the committed checkpoints of a region.\n\n"
    "Example: dos checkpoint ls dos://h1,h2,h3 wordcount",
)
CheckpointNumber = Annotated[
    int | None,
    typer.Argument(
        help="Number of a checkpoint. Default: the last one.",
        autocompletion=complete_checkpoint,
        metavar="CHECKPOINT",
    ),
]


@add(app, "ls")
async def ls(
    call: Call,
    url: StoreUrl,
    name: RegionName,
) -> Report:
    """List the committed checkpoints of a region, oldest first, with step, time, size of the workers' state
    and phases.

    A retained checkpoint can be restored; a released one cannot, because data that only it needed is deleted.
    The region retains its last checkpoints (`retain`) and those of savepoints (`dos region savepoint`). A
    long manifest is rewritten with the retained checkpoints; earlier ones are then not listed. The column
    "state" shows how many bytes each worker has written to its state chain up to the checkpoint. A last line
    ("unproved" in JSON) says that a later checkpoint may be committed, which cannot be proved because a
    take-over did not complete.

    Example: dos checkpoint ls dos://h1,h2,h3 wordcount

    Example: dos checkpoint ls dos://h1,h2,h3 wordcount --json | jq .checkpoints[-1].step

    Exit codes: 0 shown, 1 no such region, 2 usage, 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        view = await read_manifest(store, name)
    savepoints = view.last.savepoints if view.last is not None else {}
    rows = [checkpoint_row(checkpoint, view.retained, savepoints) for checkpoint in view.checkpoints]

    def show() -> None:
        if rows:
            _print_list(rows)
        else:
            none = "no checkpoint is proved committed" if view.unproved else "no checkpoint committed yet"
            print(f"region {name}: {none}")
        if view.unproved:
            print(view.unproved)

    value = {
        "name": name,
        "epoch": view.epoch,
        "savepoints": savepoints,
        "checkpoints": rows,
        "unproved": view.unproved,
    }
    return Report(value, show)


def _print_list(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("#checkpoint", "#step", "time", "#incarnation", "state of each worker", "slowest worker", "note"),
        [
            (
                row["checkpoint"],
                row["step"],
                clock_text(row["timeMs"]),
                row["incarnation"],
                ", ".join(map(count_text, row["workerStateBytes"])),
                seconds_text(row["phaseSeconds"]),
                _note(row),
            )
            for row in rows
        ],
    )


def _note(row: dict[str, Any]) -> str:
    notes = ["final"] if row["final"] else []
    if "retained" in row:
        notes.append("retained" if row["retained"] else "released")
    notes += [f"savepoint {savepoint}" for savepoint in row.get("savepoints", [])]
    if row["rolledBackTo"]:
        notes.append(f"back to {row['rolledBackTo']}")
    if row["batch"]:
        notes.append(f"batch {row['batch']['number']}")
    if row["edit"]:
        notes.append(f"state {'edited' if row['rolledBackTo'] else 'given'} by {row['edit']['by']}")
    return ", ".join(notes)


@add(app, "show")
async def show(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    checkpoint: CheckpointNumber = None,
) -> Report:
    """Show one checkpoint in full: the positions of workers, source splits and sinks, the layout, the
    operators.

    Example: dos checkpoint show dos://h1,h2,h3 wordcount

    Example: dos checkpoint show dos://h1,h2,h3 wordcount 41 --json

    Exit codes: 0 shown, 1 no such region or checkpoint, 2 usage, 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        found = checkpoint_full(checkpoint_of(await read_manifest(store, name), checkpoint))
    return Report(found, lambda: _print_checkpoint(name, found))


def _print_checkpoint(name: str, found: dict[str, Any]) -> None:
    print(
        f"checkpoint {found['checkpoint']} of region {name}: step {found['step']}, incarnation"
        f" {found['incarnation']},"
        f" {clock_text(found['timeMs'])}{', by ' + found['driver'] if found['driver'] else ''}"
    )
    note = _note(found) or "not final"
    print(f"continues checkpoint {found['parent'] or '-'}; graph {found['fingerprint']}; {note}")
    if batch := found["batch"]:
        print(
            f"batch {batch['number']} of query {batch['query']}, planned"
            f" {clock_text(batch['plannedMicroseconds'] // 1000)}: {batch['rows']} rows; its output is that"
            f" of steps {batch['afterStep'] + 1} to {batch['step']}"
        )
    _print_workers(found)
    _print_splits(found)
    sinks = [
        (one["worker"], sink, " ".join(f"{key}={value}" for key, value in entry.items()))
        for one in found["workers"]
        for sink, entry in one["sinks"].items()
        if isinstance(entry, dict)
    ]
    print_table(("#worker", "sink", "position"), sinks)
    ended = [
        (one["sink"], one["uid"], one["checkpoint"], one["state"], sum(one["ends"].values()))
        for one in found["ended"]
    ]
    print_table(("removed sink", "log", "#removed at", "its log is", "#end on all workers"), ended)
    files = [
        (one["worker"], operator, f"{at['epoch']:x}:{at['size']}")
        for one in found["workers"]
        for operator, at in one["directories"].items()
    ]
    print_table(("#worker", "directory of", "#position (epoch:size)"), files)
    print_table(
        ("#from shard", "#to", "#worker", "operator"),
        [
            (one["begin"], one["end"], one["worker"], one["operator"] or "all")
            for one in found["layout"]["ranges"]
        ],
    )
    print_table(("operator", "description"), list(found["operators"].items()))


def _print_workers(found: dict[str, Any]) -> None:
    rows = [
        (
            one["worker"],
            f"{one['state']['epoch']:x}:{one['state']['size']}",
            f"{one['steps']['epoch']:x}:{one['steps']['size']}",
            seconds_text(one["phaseSeconds"]),
        )
        for one in found["workers"]
    ]
    print_table(("#worker", "#state (epoch:size)", "#steps (epoch:size)", "phases"), rows)


def _print_splits(found: dict[str, Any]) -> None:
    rows = [
        (one["worker"], source, split or "(splits done)", at["position"], "done" if at["done"] else "")
        for one in found["workers"]
        for source, splits in one["sources"].items()
        for split, at in splits.items()
    ]
    print_table(("#worker", "source", "split", "#position", "note"), rows)


@add(app, "diff")
async def diff(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    first: Annotated[
        int | None,
        typer.Argument(
            help="The earlier checkpoint. Default: the last but one.",
            autocompletion=complete_checkpoint,
            metavar="CHECKPOINT",
        ),
    ] = None,
    second: Annotated[
        int | None,
        typer.Argument(
            help="The later checkpoint. Default: the last one.",
            autocompletion=complete_checkpoint,
            metavar="CHECKPOINT",
        ),
    ] = None,
    keys: Annotated[
        bool, typer.Option(help="Read the state blocks between them, and count the keys that changed.")
    ] = True,
) -> Report:
    """Compare two checkpoints: how far each split advanced, how much state was written, how many keys
    changed.

    Counting keys needs pyarrow, reads the state blocks between the two, and requires that both checkpoints
    are retained; --no-keys skips it. A number is negative if the region was reset between the two.

    Example: dos checkpoint diff dos://h1,h2,h3 wordcount

    Example: dos checkpoint diff dos://h1,h2,h3 wordcount 12 41 --no-keys

    Exit codes: 0 shown, 1 no such region or checkpoint, 2 usage, 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        view = await read_manifest(store, name)
        before = checkpoint_of(view, first, back=1 if first is None else 0)
        after = checkpoint_of(view, second)
        found = checkpoint_diff(before, after)
        changed = _state_reader() if keys else None
        call.display.say(f"reads the state written from checkpoint {before.number} to {after.number}")
        if changed is not None:  # the blocks of a released checkpoint may be deleted
            for checkpoint in (before, after):
                view.restorable(checkpoint.number)
        try:
            found["state"] = await changed(store, name, before, after) if changed is not None else None
        except DosError:  # a checkpoint may have been released meanwhile: then report that
            view = await read_manifest(store, name)
            for checkpoint in (before, after):
                view.restorable(checkpoint.number)
            raise
    return Report(found, lambda: _print_diff(name, found))


def _print_diff(name: str, found: dict[str, Any]) -> None:
    print(
        f"region {name}, checkpoint {found['from']} to {found['to']}: {found['steps']} steps in"
        f" {found['seconds']:.1f} s, {_signed_bytes(found['stateBytes'])} of state written"
    )
    if found["changed"]:
        print(f"different: {', '.join(found['changed'])}")
    print_table(
        ("source", "split", "#from", "#to", "#advanced", "note"),
        [
            (row["source"], row["split"], row["from"], row["to"], row["advanced"], _split_note(row))
            for row in found["splits"]
        ],
    )
    _print_state(found["state"])


def _split_note(row: dict[str, Any]) -> str:
    if row["to"] is None:
        return "read to its end"
    return "done" if row["done"] else ""


def _state_reader() -> Callable[[Store, str, Checkpoint, Checkpoint], Awaitable[dict[str, Any]]] | None:
    """Return the function that counts changed keys, or None if pyarrow is not installed."""
    try:
        from checkpoint.chains.state_store import changed_state
    except ImportError as error:
        warn(f"keys are not counted: {error}; pip install 'dos-journal[dataflow]', or pass --no-keys")
        return None
    return changed_state


def _print_state(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    print_table(
        ("operator", "#keys changed", "#rows written", "#blocks", "#bytes"),
        [
            (one["name"], one["keys"], one["rows"], one["blocks"], count_text(one["bytes"]))
            for one in state["operators"]
        ],
    )
    for line in state["unknown"]:
        print(f"not counted: {line}")


def _signed_bytes(count: int) -> str:
    return count_text(count) if count >= 0 else f"-{count_text(-count)}"


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


def verify_part(path: Path, part: OutputFileEntry, show: Callable[[int, int | None], None]) -> str:
    """Read a file up to the size in a checkpoint. Return what is wrong with it, empty if nothing is. show:
    called with the bytes read and all.
    """
    digest = PrefixDigest()
    try:
        with path.open("rb") as file:
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


@add(app, "verify")
async def verify(
    call: Call,
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
) -> Report:
    """Verify the files of a FileSink against a checkpoint, every byte. The region may be running.

    A reset verifies only the last 64 KiB of each file. This command finds damage anywhere before the size
    in the checkpoint. It reads the files of all workers; those of workers on other hosts must be in the same
    directory, or are reported as missing.

    Example: dos checkpoint verify dos://h1,h2,h3 wordcount out /data/counts

    Exit codes: 0 all files are as the checkpoint says, 1 a file is missing, shorter or different, or no such
    region, checkpoint or sink, 2 usage, 3 the store cannot be reached.
    """
    async with call.store(url) as store:
        found = checkpoint_of(await read_manifest(store, name), checkpoint).by_name()
    parts = parts_of(found, sink)
    if not parts:
        sinks = {one for part in found.outputs().values() for one in part.sinks if parts_of(found, one)}
        known = ", ".join(sorted(sinks)) or "none"
        text = (
            f"checkpoint {found.number} of {name} has no files of a sink {sink!r}; sinks with files: {known}"
        )
        fail(text, NEGATIVE)
    files = []
    for worker, part in parts.items():
        path = directory / part.file
        work = partial(verify_part, path, part, call.bar(f"reads {path}"))
        # In a thread that an interrupt leaves: a file may take minutes.
        problem = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        files.append({"worker": worker, "file": str(path), "bytes": part.size, "problem": problem})
    rows = [(one["worker"], one["file"], one["bytes"], one["problem"] or "verified") for one in files]
    columns = ("#worker", "file", "#bytes", "result")
    wrong = sum(bool(one["problem"]) for one in files)
    return Report(
        {"checkpoint": found.number, "files": files},
        lambda: print_table(columns, rows),
        NEGATIVE if wrong else 0,
        f"{wrong} of {len(files)} files are not as checkpoint {found.number} says" if wrong else "",
    )
