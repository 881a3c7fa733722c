"""Files by splits: every line once, whatever the checkpoints; positions that prove themselves; changed files
refused.
"""

import gzip
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.records.manifest import SplitPosition
from dataflow import FileSource, limits
from dataflow.errors import (
    InputChangedError,
    InputEncodingError,
    InputListChangedError,
    InputReadError,
)
from dataflow.sources.base import DONE_SPLITS, SourceBatch
from dataflow.sources.file_source import FileReader, reader_of
from dataflow.sources.input_files import GzipBytes, PlainBytes
from dos_protocol.digests import ResumePoint, prefix_digest

_texts = st.lists(
    st.lists(st.text(alphabet="ab \t\ré日", max_size=8), max_size=8).map("\n".join), min_size=1, max_size=4
)


def write(directory: Path, texts: list[str | bytes]) -> list[Path]:
    paths = []
    for index, text in enumerate(texts):
        paths.append(directory / f"f{index}")
        paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths


def lines_in(text: str) -> list[str]:
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in lines]


def lines_of(batches: list[SourceBatch]) -> list[str]:
    return [line for batch in batches for line in batch.batch.column("line").to_pylist()]


def read_all(reader: FileReader, bytes_max: int) -> list[SourceBatch]:
    batches = []
    while (batch := reader.read(bytes_max)) is not None:
        batches.append(batch)
    assert reader.exhausted
    return batches


@given(_texts, st.integers(1, 40), st.integers(1, 3), st.integers(1, 3))
def test_every_line_comes_once_per_pass_whatever_the_batches_and_workers(
    texts: list[str], bytes_max: int, workers: int, repeat: int
) -> None:
    with TemporaryDirectory() as directory:
        source = FileSource(write(Path(directory), [*texts]), repeat)
        found = []
        for worker in range(workers):
            found += lines_of(read_all(reader_of(source, worker, workers), bytes_max))
        assert sorted(found) == sorted(line for text in texts for line in lines_in(text) * repeat)


@given(_texts, st.integers(1, 30), st.data())
def test_a_reader_continues_from_any_position_and_replays_any_division(
    texts: list[str], bytes_max: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as directory:
        source = FileSource(write(Path(directory), [*texts]), repeat=2)
        reader = reader_of(source, 0, 1)
        steps, positions, divisions = [], [reader.positions()], []
        while not reader.exhausted:
            batch = reader.read(bytes_max)
            steps.append(lines_of([batch] if batch else []))
            divisions.append(reader.take_division())
            positions.append(reader.positions())
        start = data.draw(st.integers(0, len(steps)))
        twin = reader_of(source, 0, 1)
        twin.reset_to(positions[start])
        until = data.draw(st.integers(start, len(steps)))
        for step in range(start, until):
            assert lines_of(twin.replay(divisions[step])) == steps[step]
            assert twin.take_division() == divisions[step]
            assert twin.positions() == positions[step + 1]
        rest = lines_of(read_all(twin, bytes_max))
        assert rest == [line for step in steps[until:] for line in step]


def test_passes_deal_files_to_other_workers_so_that_they_even_out(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path, ["a"] * 2), repeat=2)
    assert [name.partition(":")[0] + path[-1] for name, path in source.splits_of(0, 2)] == ["00", "11"]
    assert [name.partition(":")[0] + path[-1] for name, path in source.splits_of(1, 2)] == ["01", "10"]


def test_a_checkpoint_does_not_grow_with_the_number_of_files_read(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path, ["some words\n"] * 50))
    reader = reader_of(source, 0, 1)
    reader.read(35)
    assert len(reader.positions()) <= 2
    read_all(reader, 1000)
    assert set(reader.positions()) == {DONE_SPLITS}
    assert reader.positions()[DONE_SPLITS].position == 50


def stopped_in_the_middle(tmp_path: Path) -> tuple[Path, FileSource, dict[str, SplitPosition]]:
    path = tmp_path / "input"
    path.write_bytes(b"one line\n" * 100)
    source = FileSource(path)
    reader = reader_of(source, 0, 1)
    reader.read(450)
    positions = reader.positions()
    (at,) = [at for name, at in positions.items() if name != DONE_SPLITS]
    digest = prefix_digest(b"one line\n" * 50)
    assert at == SplitPosition(450, digest, resume=ResumePoint(0, 0))
    return path, source, positions


def test_a_file_that_grew_is_accepted_and_read_to_its_new_end(tmp_path: Path) -> None:
    path, source, positions = stopped_in_the_middle(tmp_path)
    with path.open("ab") as file:
        file.write(b"more\n")
    reader = reader_of(source, 0, 1)
    reader.reset_to(positions)
    assert lines_of(read_all(reader, 1 << 20)) == ["one line"] * 50 + ["more"]


def test_a_file_that_shrank_is_refused_by_name_with_expected_and_found(tmp_path: Path) -> None:
    path, source, positions = stopped_in_the_middle(tmp_path)
    os.truncate(path, 449)
    with pytest.raises(InputChangedError) as caught:
        reader_of(source, 0, 1).reset_to(positions)
    assert (caught.value.path, caught.value.position) == (str(path), 450)
    assert "expected at least 450 bytes, found 449" in str(caught.value)


def test_a_file_whose_first_bytes_changed_is_refused(tmp_path: Path) -> None:
    path, source, positions = stopped_in_the_middle(tmp_path)
    with path.open("r+b") as file:
        file.write(b"O")
    with pytest.raises(InputChangedError, match="expected content with digest"):
        reader_of(source, 0, 1).reset_to(positions)


def test_a_change_in_what_a_recorded_step_had_read_is_noticed_by_the_replay(tmp_path: Path) -> None:
    path, source, positions = stopped_in_the_middle(tmp_path)
    first = reader_of(source, 0, 1)
    first.reset_to(positions)
    first.read(90)
    division = first.take_division()
    with path.open("r+b") as file:
        file.seek(460)
        file.write(b"X")
    reader = reader_of(source, 0, 1)
    reader.reset_to(positions)
    with pytest.raises(InputChangedError):
        reader.replay(division)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    reader = reader_of(FileSource(tmp_path / "nowhere"), 0, 1)
    with pytest.raises(InputReadError, match="nowhere"):
        reader.read(100)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    source = FileSource(tmp_path / "pipe")
    with pytest.raises(InputReadError, match="not a regular file"):
        reader_of(source, 0, 1).read(100)
    directory = FileSource(tmp_path / "made later")
    (tmp_path / "made later").mkdir()
    with pytest.raises(InputReadError, match="not a regular file"):
        reader_of(directory, 0, 1).read(100)


def test_where_operators_trigger_checkpoints_a_file_is_the_end_until_a_checkpoint_was_taken(
    tmp_path: Path,
) -> None:
    paths = write(tmp_path, ["a\nb\n", "c\n", "d\n"])
    reader = reader_of(FileSource(paths), 0, 1, stop_after_file=True)
    batch = reader.read(1000)
    assert batch is not None
    assert lines_of([batch]) == ["a", "b"]
    division = reader.take_division()
    assert reader.wants_checkpoint
    assert reader.read(1000) is None
    again = reader_of(FileSource(paths), 0, 1, stop_after_file=True)
    again.replay(division)
    assert again.wants_checkpoint, "a replay comes to the same places"
    for one in (reader, again):
        one.checkpoint_taken()
        batch = one.read(1000)
        assert batch is not None
        assert lines_of([batch]) == ["c"]
    reader.reset_to({})
    assert not reader.wants_checkpoint


def test_files_may_be_added_at_the_end_of_the_list_and_not_exchanged(tmp_path: Path) -> None:
    paths = write(tmp_path, ["a\n", "b\n", "c\n"])
    reader = reader_of(FileSource(paths[:2]), 0, 1)
    read_all(reader, 100)
    positions = reader.positions()
    longer = reader_of(FileSource(paths), 0, 1)
    longer.reset_to(positions)
    assert lines_of(read_all(longer, 100)) == ["c"]
    for wrong in ([paths[1], paths[0], paths[2]], paths[:1]):
        with pytest.raises(InputListChangedError):
            reader_of(FileSource(wrong), 0, 1).reset_to(positions)


def test_bytes_that_are_not_utf_8_are_refused_with_their_place_or_replaced(tmp_path: Path) -> None:
    paths = write(tmp_path, [b"fine\n", b"also fine\nb\xff\xfed\n"])
    with pytest.raises(InputEncodingError, match="at byte 11") as caught:
        reader_of(FileSource(paths), 0, 1).read(1000)
    assert caught.value.path == str(paths[1])
    replaced = reader_of(FileSource(paths, errors="replace"), 0, 1)
    assert lines_of(read_all(replaced, 1000)) == ["fine", "also fine", "b\ufffd\ufffdd"]


def test_ends_of_lines_and_byte_order_marks_are_those_that_spark_knows(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    texts: list[str | bytes] = [b"a\r\nb", b"", b"\n\nc\n", mark + b"d\r\n" + mark + b"e\rf\r", mark]
    paths = write(tmp_path, texts)
    for bytes_max in (1000, 5, 1):
        reader = reader_of(FileSource(paths), 0, 1)
        batches = read_all(reader, bytes_max)
        assert lines_of(batches) == ["a", "b", "", "", "c", "d", "\ufeffe\rf"]
        assert sum(batch.bytes_read for batch in batches) == sum(map(len, texts))
    (batch,) = read_all(reader := reader_of(FileSource(paths), 0, 1), 1000)
    assert [reader.describe(batch, row)[-6:] for row in (5, 6)] == ["byte 3", "byte 6"]


def test_a_line_longer_than_a_batch_comes_whole_and_one_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write(tmp_path, [b"x" * 5000 + b"\nshort\n"])
    reader = reader_of(FileSource(paths), 0, 1)
    assert lines_of(read_all(reader, 16)) == ["x" * 5000, "short"]
    monkeypatch.setattr(limits, "line_bytes_max", 1000)
    with pytest.raises(InputReadError, match="more than 1000 bytes at byte 0"):
        reader_of(FileSource(paths), 0, 1).read(16)


def test_the_place_of_a_row_is_reported_as_file_and_byte(tmp_path: Path) -> None:
    paths = write(tmp_path, [b"aa\nbbb\n", b"c\nd"])
    reader = reader_of(FileSource(paths, repeat=2), 0, 1)
    batch = reader.read(1000)
    assert batch is not None
    where = [reader.describe(batch, row) for row in range(batch.batch.num_rows)]
    assert where[1] == f"file '{paths[0]}' (pass 1), byte 3"
    assert where[3] == f"file '{paths[1]}' (pass 1), byte 2"
    assert where[7] == f"file '{paths[1]}' (pass 2), byte 2"
    assert reader.describe(batch, None).startswith(f"file '{paths[0]}' (pass 1), byte 0, to file")


# --- gzip ---------------------------------------------------------------------------------------------------


def gzipped(directory: Path, text: bytes, *, parts: int = 1) -> Path:
    path = directory / "in.txt.gz"
    step = len(text) // parts + 1
    path.write_bytes(b"".join(gzip.compress(text[at : at + step]) for at in range(0, len(text), step)))
    return path


@given(st.integers(1, 400), st.integers(1, 3), st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_lines_of_gzip_are_those_of_the_file_in_it_and_so_are_positions(
    lines: int, parts: int, sizes: list[int]
) -> None:
    text = "".join(f"line {number} é\n" for number in range(lines)).encode()
    with TemporaryDirectory() as directory:
        plain = FileSource(write(Path(directory), [text]))
        zipped = FileSource(gzipped(Path(directory), text, parts=parts))
        one, other = reader_of(plain, 0, 1), reader_of(zipped, 0, 1)
        for size in sizes:
            found = [reader.read(size) for reader in (one, other)]
            assert lines_of([b for b in found[:1] if b]) == lines_of([b for b in found[1:] if b])
        at = other.positions()
        assert [(p.position, p.digest) for name, p in at.items() if name != DONE_SPLITS] == [
            (p.position, p.digest) for name, p in one.positions().items() if name != DONE_SPLITS
        ]
        division = other.take_division()
        rest = lines_of(read_all(other, 50))
        again = reader_of(zipped, 0, 1)
        again.replay(division)
        assert again.positions() == at
        again.reset_to(at)
        assert lines_of(read_all(again, 70)) == rest
        for reader in (one, other, again):
            reader.close()


def test_what_compresses_well_is_held_in_small_pieces(tmp_path: Path) -> None:
    path = gzipped(tmp_path, b"x" * 99 + b"\n", parts=1)
    with gzip.open(path, "wb") as file:
        for _ in range(300):
            file.write(b"0123456789\n" * 1000)
    held = GzipBytes(str(path), PlainBytes(str(path), os.open(path, os.O_RDONLY)))
    at, most = 0, 0
    while block := held.read(at, 11_000):
        at, most = at + len(block), max(most, len(held._ahead))
    assert held.read(11, 11) == b"0123456789\n", "going back reads from the beginning"
    held.close()
    assert at == 300 * 11_000
    assert most < 600_000


@pytest.mark.parametrize("keep", [5, 40, -3])
def test_gzip_that_is_cut_short_or_damaged_is_an_error_with_its_place(tmp_path: Path, keep: int) -> None:
    path = gzipped(tmp_path, os.urandom(500).hex().encode() + b"\n")
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    reader = reader_of(FileSource(path), 0, 1)
    with pytest.raises(InputReadError, match=r"in\.txt\.gz' ends within its gzip stream, at byte \d+"):
        read_all(reader, 10_000)
    reader.close()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 255]) + whole[61:])
    with pytest.raises(InputReadError, match=r"in\.txt\.gz' is damaged gzip before byte"):
        read_all(reader := reader_of(FileSource(path), 0, 1), 10_000)
    reader.close()


def test_padding_behind_gzip_is_nothing_and_another_content_is_refused(tmp_path: Path) -> None:
    path = gzipped(tmp_path, b"one\ntwo\n", parts=2)
    first, second = gzip.compress(b"one\n"), gzip.compress(b"two\n")
    path.write_bytes(first + bytes(300_000) + second + bytes(700))
    reader = reader_of(FileSource(path), 0, 1)
    assert lines_of([batch for batch in [reader.read(4)] if batch]) == ["one"]
    at = reader.positions()
    assert lines_of(read_all(reader, 100)) == ["two"]
    gzipped(tmp_path, b"ONE\ntwo\n")
    with pytest.raises(InputChangedError):
        reader_of(FileSource(path), 0, 1).reset_to(at)
    gzipped(tmp_path, b"on")
    with pytest.raises(InputChangedError, match="at least 4 bytes, found 2"):
        reader_of(FileSource(path), 0, 1).reset_to(at)
