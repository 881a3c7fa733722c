"""Local files that a promise rests on: what was promised is there after a power cut between any two calls."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from dataflow import FileSink, ParquetSink
from dataflow.errors import SinkFencedError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter
from dataflow.sinks.files import own_directory
from dos_client.store import open_store
from dos_server.settings_cli import edit_file
from dos_server.testing import memory_store
from dos_tls import make_durable_folders, replace_durably
from journal import Directory, LocalClaim, LocalJournal, Op, Record
from journal.files.mirroring import ChainMirror, Mirror
from tests.journal.journaled_files import files
from tests.power.crash_states import plain_folder
from tests.power.local_files import AfterCut, Program, cut_everywhere

SCHEMA = pa.schema([("id", pa.int64())])
SMALL: dict[str, Any] = {"recovery_bytes": 600, "segment_bytes": 300}


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": number} for number in numbers], SCHEMA)


# --- Output -----------------------------------------------------------------------------------------------


class Voted(NamedTuple):
    """What a worker voted for, as in a manifest: the state of its sink, and the rows up to there."""

    prepared: Any
    ids: list[int]
    checkpoint: int
    incarnation: int
    visible: list[int]
    """Those whose commit has ended."""


BEGINNING = Voted(None, [], 0, 0, [])


@contextmanager
def resumed(spec: SinkSpec, last: Voted, incarnation: int) -> Iterator[SinkWriter]:
    """A writer that continues at the last committed checkpoint."""
    context = OperatorContext(
        "r", "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation, checkpoint=last.checkpoint
    )
    with closing(spec.open(context)) as writer:
        writer.reset_to(last.prepared)
        writer.publish(last.checkpoint)
        yield writer


ACCEPTED = Voted({"file": "part-w0000.tsv", "size": 5, "digest": 1, "resume": [0, 0]}, [], 1, 0, [])
"""A checkpoint whose output is lost, which a person accepts."""


def write_output(program: Program[Voted], spec: SinkSpec, begin: Voted) -> None:
    """A worker takes checkpoints: rows, a vote, the commit, and a reset, which gives up what followed."""
    last = program.promises[-1] if program.promises else begin
    last = last._replace(incarnation=program.start + 2, visible=last.ids)
    if isinstance(spec, FileSink) and begin is ACCEPTED and not program.promises:  # its rows marked it
        make_durable_folders(Path(spec.directory))
        owner = msgspec.json.encode(OutputOwner("r", bytes(16).hex(), "out"))
        own_directory(Path(spec.directory), owner, list, "marked")
    with resumed(spec, last, last.incarnation) as writer:
        program.promise(last)
        take_checkpoints(program, writer, last)


def take_checkpoints(program: Program[Voted], writer: SinkWriter, last: Voted) -> None:
    for checkpoint in range(last.checkpoint + 1, last.checkpoint + 3):
        ids = [10 * checkpoint, 10 * checkpoint + 1]
        for number in ids:
            writer.process(rows(number))
            writer.end_step()
        prepared = writer.prepare(checkpoint)
        writer.process(rows(10 * checkpoint + 9))  # of a later step
        writer.end_step()
        writer.sync()
        last = last._replace(prepared=writer.voted(prepared), ids=last.ids + ids, checkpoint=checkpoint)
        program.promise(last)
        writer.publish(checkpoint)
        last = last._replace(visible=last.ids)
        program.promise(last)
        if checkpoint % 2:
            writer.reset_to(last.prepared)
        else:
            last = last._replace(ids=[*last.ids, 10 * checkpoint + 9])  # with the next checkpoint


def check_output(
    after: AfterCut[Voted], spec: SinkSpec, begin: Voted, visible: Callable[[], list[int]]
) -> None:
    last = after.promises[-1] if after.promises else begin
    found = visible()
    assert set(last.visible) <= set(found), "rows of a committed checkpoint are not visible"
    if last.incarnation and isinstance(spec, FileSink):
        with pytest.raises(SinkFencedError), resumed(spec, last, last.incarnation - 1):
            pass
    with resumed(spec, last, last.incarnation + 10) as writer:
        writer.process(rows(7))
        writer.end_step()
        writer.prepare(last.checkpoint + 1)
        writer.sync()
        writer.publish(last.checkpoint + 1)
    assert sorted(visible()) == sorted([*last.ids, 7])


def ids_of_text(folder: Path) -> list[int]:
    return [
        int(line)
        for path in folder.glob("part-*.tsv")
        for line in path.read_bytes().split()
        if line.isdigit()
    ]


def ids_of_parquet(folder: Path) -> list[int]:
    return [
        number
        for path in folder.glob("part-*.parquet")
        for number in pq.ParquetFile(path).read()["id"].to_pylist()
    ]


@pytest.mark.parametrize(
    ("kind", "begin", "ids", "kills", "seeds"),
    [
        pytest.param(FileSink, BEGINNING, ids_of_text, 30, 12, id="text"),
        pytest.param(
            partial(FileSink, accept_lost_output=1), ACCEPTED, ids_of_text, 20, 2, id="after a loss"
        ),
        pytest.param(ParquetSink, BEGINNING, ids_of_parquet, 0, 3, id="parquet"),
        pytest.param(
            partial(ParquetSink, shared=True), BEGINNING, ids_of_parquet, 14, 0, id="shared parquet"
        ),
    ],
)
def test_output_of_a_checkpoint_outlasts_every_power_cut(
    tmp_path: Path,
    kind: Callable[[Path], SinkSpec],
    begin: Voted,
    ids: Callable[[Path], list[int]],
    kills: int,
    seeds: int,
) -> None:
    checked = cut_everywhere(
        tmp_path / "disk",
        lambda program: write_output(program, kind(program.root / "new" / "out"), begin),
        lambda after: check_output(
            after, kind(after.root / "new" / "out"), begin, lambda: ids(after.root / "new" / "out")
        ),
        kills=range(1, kills + 1),
        seeds=seeds,
    )
    assert checked > 7 * (kills + seeds)


# --- Journals ---------------------------------------------------------------------------------------------


class Synced(NamedTuple):
    """A local journal that was synced: its segments, and the files that it rebuilds."""

    segments: dict[str, bytes]
    files: dict[str, bytes]


class Handed(NamedTuple):
    """Bytes of a segment that a store received."""

    segment: str
    data: bytes


def keep_journal(program: Program[Synced | Handed]) -> None:
    """Changes of a directory whose journal is synced, rolled and mirrored."""

    async def run(live: Path) -> None:
        path, rng = program.root / "new" / "journal", random.Random(program.start)
        async with memory_store() as servers, open_store(servers.url) as store:
            with LocalClaim(path) as claim:
                async with await Directory.open(live, claim, **SMALL) as directory:
                    with ChainMirror.open(path, store, "copy") as mirror:
                        for number in range(3):
                            for _ in range(4):
                                await directory.append(rng.choice("ab"), rng.randbytes(90))
                            if number % 2:
                                await directory.wait_synced()
                                program.promise(Synced(files(path), files(live)))
                            await mirror.pass_on()
                        await mirror.aclose()

    with plain_folder() as live:
        trio.run(run, live / "live")


def check_journal(after: AfterCut[Synced | Handed]) -> None:
    path = after.root / "new" / "journal"
    for one in after.promises:
        promised = [one] if isinstance(one, Handed) else [Handed(*item) for item in one.segments.items()]
        for name, data in promised:
            if f"new/journal/{name}" in after.seen:  # it was not deleted before the cut
                assert (path / name).exists(), f"{name} is missing"
                assert (path / name).read_bytes().startswith(data), f"{name} lacks bytes"
    synced = [one for one in after.promises if isinstance(one, Synced)]

    async def run(live: Path) -> None:
        with LocalClaim(path) as claim:
            async with await Directory.open(live, claim, **SMALL) as directory:
                found = files(live)
                for name, data in synced[-1].files.items() if synced else ():
                    assert found[name].startswith(data)
                await directory.append("c", b"more")
                await directory.wait_synced()

    if after.bare:  # of unsynced bytes, a disk may keep later ones without earlier ones: damage, by the rules
        with plain_folder() as live:
            trio.run(run, live / "live")


def test_a_local_journal_has_what_was_synced_and_all_that_its_mirror_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[Program[Synced | Handed]] = []
    pass_on = Mirror.pass_on

    async def noted(mirror: Mirror, upto: int | None = None) -> int:
        before = mirror._path.read_bytes()
        programs[-1].promise(Handed(mirror._path.name, before if upto is None else before[:upto]))
        return await pass_on(mirror, upto)

    def work(program: Program[Synced | Handed]) -> None:
        programs.append(program)
        keep_journal(program)

    monkeypatch.setattr(Mirror, "pass_on", noted)
    assert cut_everywhere(tmp_path / "disk", work, check_journal, kills=(9, 40), seeds=1) > 100


def keep_one_file(program: Program[bytes]) -> None:
    """A journal in one file, as the original service has."""

    async def run() -> None:
        with LocalJournal(program.root / "journal") as journal:
            for number in range(4):
                journal.append(Record(Op.WRITE, ints=(number,), strings=(b"f", bytes(700))))
                await journal.wait_synced()
                program.promise((program.root / "journal").read_bytes())

    trio.run(run)


def check_one_file(after: AfterCut[bytes]) -> None:
    if after.promises:
        assert (after.root / "journal").read_bytes().startswith(after.promises[-1])


def test_a_journal_of_one_file_has_what_was_synced(tmp_path: Path) -> None:
    assert cut_everywhere(tmp_path / "disk", keep_one_file, check_one_file, kills=(1, 2, 3)) > 20


# --- Settings ---------------------------------------------------------------------------------------------


def edit(program: Program[bytes]) -> None:
    for _ in range(3):
        edit_file(program.root / "tokens", lambda old: (old or b"") + b"a line\n", "dos token add")
        program.promise((program.root / "tokens").read_bytes())


def replace(program: Program[bytes]) -> None:
    file = program.root / "tokens"
    for _ in range(3):
        replace_durably(file, (file.read_bytes() if file.exists() else b"") + b"a line\n")
        program.promise(file.read_bytes())


def check_edited(after: AfterCut[bytes]) -> None:
    file = after.root / "tokens"
    found, last = file.read_bytes() if file.exists() else b"", after.promises[-1] if after.promises else b""
    assert found in (last, last + b"a line\n")


@pytest.mark.parametrize("work", [edit, replace])
def test_an_edited_file_of_settings_is_the_old_one_or_the_new_one(
    tmp_path: Path, work: Callable[[Program[bytes]], None]
) -> None:
    assert cut_everywhere(tmp_path / "disk", work, check_edited, kills=range(1, 12)) > 10
