"""Operations on files at their edges: nothing, zero, gaps, maxima, names at their limit.

Generated changes count the edges that they reach, and the test fails if they miss one.
"""

from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import Op, Record
from journal.core.errors import FileConflictError, UnsafePathError
from journal.core.file_ops import FileWrite, file_op, path_bytes, record_of
from journal.files.replaying import FileSizes, FilesReplay
from journal.files.tree import FileTree
from journal.limits import file_bytes_max
from tests.journal.journaled_files import CHANGE, changed, files, write

NAMES = ("a", "b", "d/\udcff")
CHANGES = st.one_of(
    st.tuples(
        st.just("write_at"), st.sampled_from(NAMES), st.sampled_from([0, 1, 5, 7, 40]), st.binary(max_size=3)
    ),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.sampled_from([0, 1, 5, 40])),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
)


def edges_of(model: dict[str, bytes], change: tuple) -> set[str]:  # type: ignore[type-arg]
    kind, name, *rest = change
    size = len(model.get(name, b""))
    if kind == "remove":
        return {"a removal of nothing" if name not in model else "a removal"}
    if kind == "append":
        return {"an append of nothing" if not rest[0] else "an append"}
    if kind == "rename":
        onto = "itself" if rest[0] == name else "another file" if rest[0] in model else "a new name"
        return {f"a rename onto {onto}"} if name in model else {"a rename of nothing"}
    if kind == "truncate":
        return (
            {"a truncation to zero"}
            if rest[0] == 0
            else {"an extension" if rest[0] > size else "a truncation"}
        )
    if not rest[1]:
        return {"an empty write past the end" if rest[0] > size else "an empty write"}
    edge = "over a gap" if rest[0] > size else "at the end" if rest[0] == size else "within"
    return {f"a write {edge}", "a write into a new file" if name not in model else "a write"}


EDGES = {
    *("a removal of nothing", "a removal", "a truncation to zero", "an extension", "a truncation"),
    *(
        "an empty write past the end",
        "an empty write",
        "a write over a gap",
        "a write at the end",
        "a write within",
    ),
    *("a write into a new file", "a write"),
}


def record_of_change(change: tuple) -> Record:  # type: ignore[type-arg]
    kind, name, *rest = change
    if kind == "write_at":
        return write(path_bytes(name), rest[1], rest[0])
    return Record(
        Op.TRUNCATE if kind == "truncate" else Op.REMOVE, ints=tuple(rest), strings=(path_bytes(name),)
    )


def test_a_replay_into_files_and_into_sizes_has_what_the_operating_system_makes_of_the_changes(
    tmp_path: Path,
) -> None:
    reached, numbers = Counter[str](), count()

    @given(st.lists(CHANGES, max_size=12), st.sampled_from([0, 200, 1_000]))
    def replay(changes: list[tuple], gather_bytes: int) -> None:  # type: ignore[type-arg]
        model: dict[str, bytes] = {}
        root = tmp_path / str(next(numbers))
        root.mkdir()
        steps = []
        for change in changes:
            reached.update(edges_of(model, change))
            if change[0] != "remove" or change[1] in model:
                model = changed(model, change)
            steps.append((len(steps) + 1, record_of_change(change)))
        sizes = FileSizes()
        assert FilesReplay(sizes).take(steps)
        assert sizes.sizes == {name: len(data) for name, data in model.items()}
        with FileTree(root, gather_bytes=gather_bytes) as tree:
            assert FilesReplay(tree).take(steps)
            tree.flush()
        assert files(root) == model

    replay()
    assert reached.keys() == EDGES


def test_the_changes_that_tests_of_journaled_directories_make_reach_the_same_edges() -> None:
    reached = Counter[str]()

    @settings(max_examples=100, derandomize=True)
    @given(st.lists(CHANGE, max_size=25))
    def play(changes: list[tuple]) -> None:  # type: ignore[type-arg]
        model: dict[str, bytes] = {}
        for change in changes:
            if change[0] in ("reopen", "tamper"):
                continue
            reached.update(edges_of(model, change))
            if change[0] not in ("remove", "rename") or change[1] in model:
                model = changed(model, change)

    play()
    renames = {
        f"a rename {of}" for of in ("of nothing", "onto itself", "onto another file", "onto a new name")
    }
    assert reached.keys() == {*EDGES, *renames, "an append", "an append of nothing"}


@pytest.mark.parametrize("character", ["a", "é", "日", "😀", "\udcff"])
@pytest.mark.parametrize("size", [1, 254, 255, 256, 257])
def test_a_name_is_accepted_exactly_if_the_operating_system_takes_it(
    tmp_path: Path, character: str, size: int
) -> None:
    """The limit is one of bytes, of each part."""
    wide = len(path_bytes(character))
    name = "d/" + "a" * (size % wide) + character * (size // wide)
    assert len(path_bytes(name)) == size + 2
    with suppress(OSError):
        (tmp_path / "d").mkdir()
        (tmp_path / name).write_bytes(b"x")
    taken = files(tmp_path) == {name: b"x"}
    assert taken == (size <= 255)
    change = FileWrite(name, 0, b"x")
    if not taken:
        with pytest.raises(UnsafePathError, match=f"a part has {size} bytes, more than 255"):
            record_of(change)
        return
    assert file_op(record_of(change)) == change
    (tmp_path / "tree").mkdir()
    with FileTree(tmp_path / "tree") as tree:
        tree.apply(change)
    assert files(tmp_path / "tree") == {name: b"x"}


@pytest.mark.parametrize("character", ["a", "日", "😀"])
@pytest.mark.parametrize("size", [4095, 4096, 4097])
def test_a_path_has_at_most_4096_bytes_whatever_its_characters(character: str, size: int) -> None:
    path = (character * (240 // len(character.encode())) + "/") * 16
    path += "b" * (size - len(path.encode()))
    assert len(path.encode()) == size
    if size <= 4096:
        assert record_of(FileWrite(path, 0, b"")).strings[0] == path.encode()
    else:
        with pytest.raises(UnsafePathError, match="it has 4097 bytes, more than 4096"):
            record_of(FileWrite(path, 0, b""))


@pytest.mark.parametrize("op", [Op.WRITE, Op.TRUNCATE])
@pytest.mark.parametrize("length", [0, file_bytes_max, file_bytes_max + 1, 2**64 - 1])
@pytest.mark.parametrize("data", [b"", b"x"])
def test_a_length_that_no_file_can_have_is_refused_with_the_file(op: Op, length: int, data: bytes) -> None:
    data = data if length and op is Op.WRITE else b""
    record = Record(op, ints=(length - len(data),), strings=(b"f", data) if op is Op.WRITE else (b"f",))
    sizes = FileSizes()
    if length > file_bytes_max:
        with pytest.raises(FileConflictError, match=f"it would have {length} bytes"):
            FilesReplay(sizes).take([(1, record)])
    else:
        assert FilesReplay(sizes).take([(1, record)])
        assert sizes.sizes == {"f": 0 if op is Op.WRITE and not data else length}
