"""Files at large positions: a reset reads only the end of them, and their digests stay those of the whole
files.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.records.manifest import SplitPosition
from dataflow import FileSink, FileSource
from dataflow.core.file_digest import FileDigest, Verify, resumed
from dataflow.errors import InputChangedError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.files import FileWriter, PartFile, part_name
from dataflow.sources.file_source import FileReader, reader_of
from dataflow.sources.input_files import PlainBytes
from dos_protocol.digests import ResumePoint, prefix_digest
from dos_protocol.errors import CorruptDataError

BLOCK = 64 * 1024
MIB = 1024 * 1024
GIB = 1024 * MIB


def lines(size: int, seed: int = 0) -> bytes:
    """Return that many bytes of lines, all different."""
    text = b"".join(b"%09d\n" % (seed + number) for number in range(size // 10 + 1))
    return text[:size]


# --- digests ------------------------------------------------------------------------------------------------

_pieces = st.lists(st.integers(0, 3 * BLOCK) | st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1]), max_size=6)


@given(_pieces, _pieces)
def test_a_resumed_digest_is_that_of_the_whole_file(before: list[int], after: list[int]) -> None:
    content = lines(sum(before) + sum(after))
    digest, at = FileDigest(), 0
    for size in before:
        digest.update(content[at : at + size])
        at += size
    point = digest.resume
    assert digest.value == prefix_digest(content[:at])
    assert point.digest == prefix_digest(content[: point.size])
    assert point.size == 0 or BLOCK <= at - point.size < 2 * BLOCK
    again = resumed(point, whole=False)
    again.update(content[point.size : at])
    assert (again.size, again.value, again.resume) == (digest.size, digest.value, digest.resume)
    for size in after:
        for one in (digest, again):
            one.update(content[at : at + size])
        at += size
        assert again.value == digest.value == prefix_digest(content[:at])
    assert digest.resume.size == 0 or BLOCK <= at - digest.resume.size < 2 * BLOCK


# --- a source and a sink under test -------------------------------------------------------------------------


class Reads:
    """Counts the bytes that readers of input and writers of output read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        for kind in (PlainBytes, PartFile):
            monkeypatch.setattr(kind, "read", self._counting(kind.read))

    def _counting(self, read: Any) -> Any:
        def counted(file: Any, position: int, count: int) -> bytes:
            block: bytes = read(file, position, count)
            self.bytes += len(block)
            return block

        return counted

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        return taken


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def reader(path: Path, verify: Verify = "tail") -> FileReader:
    return reader_of(FileSource(path, verify=verify), 0, 1)


def writer(directory: Path, verify: Verify = "tail", incarnation: int = 1) -> FileWriter:
    context = OperatorContext("r", "out", 0, 1, b"s" * 16, (), None, incarnation)
    return FileSink(directory, verify=verify).open(context)


class Part:
    """A part of a sink that has written some content, and what a checkpoint stores of it."""

    def __init__(self, directory: Path, content: bytes) -> None:
        self.directory = directory
        self.path = directory / part_name(0)
        open_part = writer(directory)
        open_part.reset_to(None)
        open_part._write(memoryview(content))
        self.prepared = open_part.prepare(1)
        open_part.close()

    def reset(self, prepared: Any = None, verify: Verify = "tail") -> Any:
        """Reset a new writer to the checkpoint; return what the next checkpoint would store."""
        again = writer(self.directory, verify)
        try:
            again.reset_to(self.prepared if prepared is None else prepared)
            return again.prepare(2)
        finally:
            again.close()


def position_at(path: Path, size: int) -> dict[str, SplitPosition]:
    """Return the positions of a reader that has read `size` bytes of a file."""
    digest = FileDigest()
    digest.update(path.read_bytes()[:size])
    return {f"0:{path}": SplitPosition(size, digest.value, resume=digest.resume)}


def reset_reader(path: Path, positions: dict[str, SplitPosition], verify: Verify = "tail") -> SplitPosition:
    one = reader(path, verify)
    try:
        one.reset_to(positions)
        return one.positions()[f"0:{path}"]
    finally:
        one.close()


def sparse(path: Path, size: int) -> tuple[int, int, ResumePoint]:
    """Make a file of that size with data only at its end; return (size, digest, resume point) of its end.

    The digest at the resume point is any number: nothing may need the bytes before it.
    """
    tail = lines(BLOCK + 5)
    point = ResumePoint((size - len(tail)) // BLOCK * BLOCK, 7)
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(size - len(tail))
        file.write(tail)
    digest = FileDigest(point)
    with path.open("rb") as file:
        file.seek(point.size)
        digest.update(file.read())
    return size, digest.value, point


# --- restores do not depend on the size ---------------------------------------------------------------------


def test_a_reset_reads_as_much_of_an_input_of_10_gib_as_of_one_of_10_mib(
    tmp_path: Path, reads: Reads
) -> None:
    counted = {}
    for size in (10 * MIB, 10 * GIB):
        path = tmp_path / f"input-{size}"
        position, digest, point = sparse(path, size)
        at = reset_reader(path, {f"0:{path}": SplitPosition(position, digest, resume=point)})
        counted[size] = reads.take()
        assert (at.position, at.digest) == (position, digest)
        path.unlink()
    assert counted[10 * GIB] == counted[10 * MIB] <= 3 * BLOCK


def test_a_reset_reads_as_much_of_an_output_of_10_gib_as_of_one_of_10_mib(
    tmp_path: Path, reads: Reads
) -> None:
    part = Part(tmp_path, lines(10))  # with its first rows it marks its directory
    counted = {}
    for size in (10 * MIB, 10 * GIB):
        position, digest, point = sparse(part.path, size)
        prepared = part.prepared | {"size": position, "digest": digest, "resume": list(point)}
        reads.take()
        assert part.reset(prepared)["size"] == size
        counted[size] = reads.take()
    assert counted[10 * GIB] == counted[10 * MIB] <= 3 * BLOCK


def test_the_next_checkpoint_after_a_reset_can_be_resumed_as_well(tmp_path: Path, reads: Reads) -> None:
    part, content = Part(tmp_path, lines(3 * MIB)), lines(3 * MIB)
    prepared = part.prepared
    for number in range(20):
        again = writer(tmp_path)
        again.reset_to(prepared)
        assert reads.take() < 2 * BLOCK
        more = lines(number * 9_000, seed=number)
        again._write(memoryview(more))
        content += more
        prepared = again.prepare(number)
        again.close()
    assert prepared["digest"] == prefix_digest(content), "the digest is that of the whole file"
    assert prepared == msgspec.json.decode(msgspec.json.encode(prepared)), "as it returns from the manifest"
    part.reset(prepared, verify="whole")
    assert reads.take() == len(content)


# --- what is detected ---------------------------------------------------------------------------------------

_sizes = st.integers(1, 4 * BLOCK) | st.sampled_from([1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])


@given(_sizes, st.data())
def test_every_change_in_the_last_64_kib_is_refused_and_so_is_every_shorter_file(
    size: int, data: st.DataObject
) -> None:
    begin = max(0, size - BLOCK)
    offset = data.draw(st.integers(begin, size - 1) | st.sampled_from([begin, size - 1]), "offset")
    shorter = data.draw(st.integers(0, size - 1) | st.just(size - 1), "shorter")
    content = lines(size)
    changed = content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]
    with TemporaryDirectory() as name:
        path = Path(name) / "input"
        path.write_bytes(content)
        positions = position_at(path, size)
        part = Part(Path(name) / "out", content)
        assert reset_reader(path, positions).position == part.reset()["size"] == size
        path.write_bytes(changed)
        with pytest.raises(InputChangedError, match=r"input '.*/input' changed below byte \d+: expected con"):
            reset_reader(path, positions)
        part.path.write_bytes(changed)
        with pytest.raises(CorruptDataError, match=rf"part-w0000\.tsv at byte {size}: expected content"):
            part.reset()
        assert part.path.read_bytes() == changed, "nothing is truncated before the check"
        os.truncate(path, shorter)
        with pytest.raises(InputChangedError, match=rf"at least {size} bytes, found {shorter}"):
            reset_reader(path, positions)
        os.truncate(part.path, shorter)
        with pytest.raises(CorruptDataError, match=rf"at least {size} bytes.*, found {shorter}"):
            part.reset()


def test_a_change_far_before_the_end_is_found_by_the_whole_check_only(tmp_path: Path) -> None:
    content = lines(5 * BLOCK)
    path = tmp_path / "input"
    path.write_bytes(content)
    positions = position_at(path, len(content))
    part = Part(tmp_path / "out", content)
    for file in (path, part.path):
        with file.open("r+b") as opened:
            opened.write(b"X")
    assert reset_reader(path, positions).digest == positions[f"0:{path}"].digest
    assert part.reset()["digest"] == part.prepared["digest"]
    with pytest.raises(InputChangedError, match="verified from byte 0"):
        reset_reader(path, positions, "whole")
    with pytest.raises(CorruptDataError, match="verified from byte 0"):
        part.reset(verify="whole")


def test_verify_is_tail_or_whole(tmp_path: Path) -> None:
    for make in (FileSource, FileSink):
        with pytest.raises(SchemaError, match="verify must be 'tail' or 'whole', not 'all'"):
            make(tmp_path / "x", verify="all")  # type: ignore[arg-type]
