"""The tree of a gateway against a model of paths, with replays of its records and of its snapshots; and
against a directory of this machine, which covers what the model could get wrong in the same way: what a
rename moves, and what refuses it. Marks, sources and replays are in the model only.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from dos_gateway.core.hadoop import HadoopError, parts_of
from dos_gateway.core.records import change_record, read_change
from dos_gateway.core.space import BodyExtent, SegmentNote
from dos_gateway.core.tree import Change, CopyForward, PutFile, Tree, TreeHead

UUIDS: Final = ("11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000")
NAMES: Final = ("a", "b", "c", f".a.{UUIDS[0]}.tmp", f".a.{UUIDS[1]}.TID7.tmp")
TIME_MS: Final = 1_000


class PathModel:
    """The contract in as few words as possible: paths to bodies, directories, sources, marks."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders = {""}
        self.moved: dict[str, str] = {}
        self.marks: dict[str, set[str]] = {}

    def above(self, path: str) -> list[str]:
        parts = path.split("/")
        return ["/".join(parts[:count]) for count in range(1, len(parts))]

    def forget(self, path: str) -> None:
        """A node leaves its place: what was marked with it, or by it."""
        self.marks.pop(path, None)
        for marked, temporaries in list(self.marks.items()):
            temporaries.discard(path)
            if not temporaries:
                del self.marks[marked]

    def put(self, path: str, size: int, *, overwrite: bool) -> bool:
        if path in self.folders or (path in self.files and not overwrite):
            return False
        if any(one in self.files for one in self.above(path)):
            return False
        self.forget(path)
        self.folders.update(self.above(path))
        self.files[path] = size
        self.moved.pop(path, None)
        return True

    def make_folder(self, path: str) -> bool:
        if path in self.files or any(one in self.files for one in self.above(path)):
            return False
        self.folders.update([*self.above(path), path])
        return True

    def below(self, path: str) -> list[str]:
        return [one for one in (*self.files, *self.folders) if one == path or one.startswith(f"{path}/")]

    def move(self, source: str, target: str, options: str | None) -> bool:
        if options is None and target in self.folders:
            target = f"{target}/{source.rpartition('/')[2]}"
        if source not in self.files and source not in self.folders:
            there = target in self.files or target in self.folders
            return there and self.moved.get(target) == source
        if f"{target}/".startswith(f"{source}/"):
            return options is None and source == target
        if target in self.files or target in self.folders:
            if (source in self.files) != (target in self.files):
                return False
            if options == "OVERWRITE":
                if len(self.below(target)) > 1:
                    return False
            elif source not in self.marks.get(target, ()) or options is None:
                return False
        if target.rpartition("/")[0] not in self.folders:
            return False
        return self._do(source, target)

    def _do(self, source: str, target: str) -> bool:
        self.forget(target)
        self.forget(source)
        self.files.pop(target, None)
        self.folders.discard(target)

        def new(path: str) -> str:
            return target + path[len(source) :] if path == source or path.startswith(f"{source}/") else path

        self.files = {new(path): size for path, size in self.files.items()}
        self.folders = {new(path) for path in self.folders}
        self.moved = {new(path): one for path, one in self.moved.items() if path != target}
        self.marks = {new(path): {new(one) for one in some} for path, some in self.marks.items()}
        self.moved[target] = source
        return True

    def remove(self, path: str, *, recursive: bool) -> bool:
        inside = self.below(path)
        if not inside or (len(inside) > 1 and not recursive):
            return False
        folder, _, name = path.rpartition("/")
        beside = {
            one
            for one in (*self.files, *self.folders)
            if one.rpartition("/")[0] == folder and one.rpartition("/")[2] in NAMES[3:] and name == "a"
        }
        if path in self.files and not recursive and beside:
            self.marks[path] = beside
            return True
        for one in inside:
            self.forget(one)
            self.files.pop(one, None)
            self.folders.discard(one)
            self.moved.pop(one, None)
        return True


def times(tree: Tree) -> dict[str, int]:
    found, waiting = {}, [("", tree.root)]
    while waiting:
        path, node = waiting.pop()
        found[path] = node.mtime_ms
        waiting += [(f"{path}/{name}", child) for name, child in (node.children or {}).items()]
    return found


def seen(tree: Tree) -> tuple[dict[str, int], set[str], dict[str, set[str]], dict[str, str]]:
    """Files with their lengths, folders, marks, sources."""
    files: dict[str, int] = {}
    folders: set[str] = set()
    marks: dict[str, set[str]] = {}
    moved: dict[str, str] = {}
    waiting = [("", tree.root)]
    while waiting:
        path, node = waiting.pop()
        if node.moved_from:
            moved[path] = node.moved_from
        if node.children is None:
            files[path] = node.length
        else:
            folders.add(path)
            waiting += [(f"{path}/{name}", child) for name, child in node.children.items()]
            marks |= {
                f"{path}/{name}": {f"{path}/{one}" for one in some}
                for name, some in (node.marks or {}).items()
            }
    return files, folders, marks, moved


class Histories:
    """A tree that is changed at random beside its model, and the records of it."""

    def __init__(self, seed: int) -> None:
        self.random, self.clock = random.Random(seed), random.Random(seed)
        self.tree, self.model = Tree([SegmentNote(1, 0, 0, 0)]), PathModel()
        self.log: list[tuple[Change, int]] = []
        self.position = 0
        self.times: dict[str, int] = {}

    def path(self) -> str:
        return "".join("/" + self.random.choice(NAMES) for _ in range(self.random.choice([1, 1, 2, 2, 3])))

    @property
    def now_ms(self) -> int:
        """The clock of a gateway, which may be behind that of the one before."""
        return TIME_MS + self.clock.randint(0, 1000)

    def apply(self, change: Change) -> None:
        self.position += 100
        decoded = read_change(change_record(change), self.position)
        assert decoded == change
        self.tree.apply(change, self.position)
        self.log.append((change, self.position))

    def step(self) -> None:
        what = self.random.choice(["put"] * 3 + ["move"] * 4 + ["remove", "folder", "copy", "segment"])
        getattr(self, what)()
        files, folders, marks, moved = seen(self.tree)
        assert (files, folders, marks) == (self.model.files, self.model.folders, self.model.marks)
        assert moved == {path: one for path, one in self.model.moved.items() if path in {*files, *folders}}
        assert self.tree.space.live_bytes == sum(files.values())
        assert {node.id for node in self.tree.root.files()} == self.tree.by_id.keys()
        shown = times(self.tree)
        if what != "move":  # a directory brings its time with it
            assert not [path for path in ("", *folders) if shown[path] < self.times.get(path, 0)], what
        self.times = {path: shown[path] for path in ("", *folders)}

    def segment(self) -> None:
        self.position += 100
        self.tree.space.close(100, 0)
        self.tree.space.open(SegmentNote(1, self.position, 0, 0))

    def put(self) -> None:
        path, overwrite, size = self.path(), self.random.random() < 0.5, self.random.randint(0, 50)
        fits = self.model.put(path, size, overwrite=overwrite)
        try:
            self.tree.check_put(parts_of(path), overwrite=overwrite)
        except HadoopError:
            assert not fits, path
            return
        assert fits, path
        extents = (BodyExtent(self.position + 1, size, 0),) if size else ()
        self.apply(PutFile(path, self.tree.time_ms(self.now_ms), self.tree.next_id, extents))

    def move(self) -> None:
        source, target = self.path(), self.path()
        options = self.random.choice([None, "NONE", "OVERWRITE"])
        expected = self.model.move(source, target, options)
        try:
            change = self.tree.move(parts_of(source), parts_of(target), options, self.now_ms)
        except HadoopError:
            assert not expected, (source, target, options)
            return
        assert bool(change) == expected, (source, target, options)
        if not isinstance(change, bool):
            self.apply(change)

    def remove(self) -> None:
        path, recursive = self.path(), self.random.random() < 0.5
        expected = self.model.remove(path, recursive=recursive)
        try:
            change = self.tree.remove(parts_of(path), recursive=recursive, now_ms=self.now_ms)
        except HadoopError:
            assert not expected, path
            return
        assert (change is not None) == expected, path
        if change is not None:
            self.apply(change)

    def folder(self) -> None:
        path = self.path()
        expected = self.model.make_folder(path)
        try:
            change = self.tree.make_folder(parts_of(path), self.now_ms)
        except HadoopError:
            assert not expected, path
            return
        assert expected, path
        if change is not None:
            self.apply(change)

    def copy(self) -> None:
        if self.tree.by_id:
            node = self.random.choice(list(self.tree.by_id.values()))
            moved = (BodyExtent(self.position + index, one.size, 0) for index, one in enumerate(node.extents))
            self.apply(CopyForward(node.id, tuple(moved)))


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_tree_is_what_its_model_says_and_so_are_its_replays(first: int) -> None:
    for seed in range(first, first + 100):
        history = Histories(seed)
        for _ in range(history.random.randint(5, 60)):
            history.step()
        tree = history.tree
        again = Tree(tree.space.notes)
        for change, position in history.log:
            again.apply(change, position)
        head, *rest = tree.snapshot("here")
        assert isinstance(head, TreeHead)
        third = Tree.after(head, tree.space.notes[-1:])
        for nodes in rest:
            assert not isinstance(nodes, TreeHead)
            third.apply(nodes, history.position)
        for other in (again, third):
            assert seen(other) == seen(tree), seed
            assert times(other) == times(tree), seed
            assert other.newest_ms == tree.newest_ms
            assert other.space.live_bytes == tree.space.live_bytes
            assert other.next_id == tree.next_id
            assert [other.space.files_in(one) for one in tree.space.notes] == [
                tree.space.files_in(one) for one in tree.space.notes
            ]


def test_only_temporary_files_that_were_there_may_replace_a_marked_file() -> None:
    tree, position = Tree([SegmentNote(1, 0, 0, 0)]), 0

    def apply(change: Change | bool | None) -> None:
        nonlocal position
        assert change is not None
        assert not isinstance(change, bool)
        position += 100
        tree.apply(change, position)

    for path in ("/a", f"/{NAMES[3]}"):
        apply(PutFile(path, TIME_MS, tree.next_id))
    apply(tree.remove(("a",), recursive=False, now_ms=TIME_MS))
    apply(PutFile(f"/{NAMES[4]}", TIME_MS, tree.next_id))
    with pytest.raises(HadoopError, match="already exists"):
        tree.move((NAMES[4],), ("a",), "NONE", TIME_MS)
    apply(tree.move((NAMES[3],), ("a",), "NONE", TIME_MS))
    with pytest.raises(HadoopError, match="already exists"):
        tree.move((NAMES[4],), ("a",), "NONE", TIME_MS)


def test_times_never_go_back_whatever_the_clock_of_a_gateway_shows() -> None:
    """Spark deletes files of RocksDB that are older than the oldest one in use."""
    tree = Tree([SegmentNote(1, 0, 0, 0)])
    for position, now_ms in enumerate((TIME_MS, 1, TIME_MS + 1), 1):
        change = tree.make_folder((f"d{position}",), now_ms)
        assert change is not None
        tree.apply(change, position)
    head, *rest = tree.snapshot("here")
    assert isinstance(head, TreeHead)
    again = Tree.after(head, ())
    for nodes in rest:
        assert not isinstance(nodes, TreeHead)
        again.apply(nodes, 9)
    for one in (tree, again):
        assert times(one) == {"": TIME_MS + 1, "/d1": TIME_MS, "/d2": TIME_MS, "/d3": TIME_MS + 1}
        assert one.time_ms(2) == TIME_MS + 1


def test_the_parts_of_a_listing_are_the_whole_one() -> None:
    tree = Tree()
    names = [f"{number:03}" for number in random.Random(1).sample(range(500), 105)]
    for number, name in enumerate(names, 1):
        tree.apply(PutFile(f"/d/{name}", TIME_MS, number), number)
    found, after, follow = [], "", len(names)
    while follow:
        part, left = tree.listing_after(("d",), after, 10)
        assert left == follow - len(part)
        found += part
        after, follow = part[-1].name, left
    assert found == tree.listing(("d",))
    assert tree.listing_after(("d", names[0]), "", 10) == (tree.listing(("d", names[0])), 0)
    assert tree.listing_after(("d", names[0]), "x", 10) == ([], 0)


class LocalDirectory:
    """The operations on a directory of this machine. Each returns whether it was done.

    | where Hadoop differs | here |
    |---|---|
    | CREATE makes the directories above | `os.makedirs` before |
    | RENAME replaces nothing without OVERWRITE, and never a directory that is not empty | looked for before |
    | RENAME of a path to itself is refused | the same |
    | RENAME without options moves into a directory that is there | its name is appended |
    | DELETE of what is not there is answered with false | `FileNotFoundError` |
    | a repeated RENAME is done before; a DELETE beside temporary files marks | names that have neither |
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, size: int, *, overwrite: bool) -> bool:
        at = self.at(path)
        try:
            at.parent.mkdir(parents=True, exist_ok=True)
            with at.open("wb" if overwrite else "xb") as file:
                file.write(bytes(size))
        except OSError:
            return False
        return True

    def make_folder(self, path: str) -> bool:
        try:
            self.at(path).mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return True

    def move(self, source: str, target: str, options: str | None) -> bool:
        if options is None and self.at(target).is_dir():
            target = f"{target}/{source.rpartition('/')[2]}"
        if options is None and source == target:
            return self.at(source).exists()
        if source == target or (options != "OVERWRITE" and self.at(target).exists()):
            return False
        try:
            os.rename(self.at(source), self.at(target))  # noqa: PTH104 - this is what it is compared with
        except OSError:
            return False
        return True

    def remove(self, path: str, *, recursive: bool) -> bool:
        at = self.at(path)
        try:
            if not at.is_dir():
                at.unlink()
            elif recursive:
                shutil.rmtree(at)
            else:
                at.rmdir()
        except OSError:
            return False
        return True

    def seen(self) -> tuple[dict[str, int], set[str]]:
        below = {f"/{one.relative_to(self.root)}": one for one in self.root.rglob("*")}
        files = {path: one.stat().st_size for path, one in below.items() if one.is_file()}
        return files, {"", *(below.keys() - files.keys())}


def test_the_tree_is_what_a_directory_of_this_machine_is(tmp_path: Path) -> None:
    done = 0
    for seed in range(60):
        rng, tree, position = random.Random(seed), Tree([SegmentNote(1, 0, 0, 0)]), 0
        local = LocalDirectory(tmp_path / str(seed))
        local.root.mkdir()
        for number in range(40):
            path, other = ("".join(f"/{rng.choice('abc')}" for _ in range(rng.randint(1, 3))) for _ in "12")
            what = rng.choice(["put", "put", "move", "move", "move", "remove", "folder"])
            flag, options, size = (
                rng.random() < 0.5,
                rng.choice([None, "NONE", "OVERWRITE"]),
                rng.randint(1, 50),
            )
            change: Change | bool | None = False
            try:
                if what == "put":
                    expected = local.put(path, size, overwrite=flag)
                    tree.check_put(parts_of(path), overwrite=flag)
                    change = PutFile(path, TIME_MS, tree.next_id, (BodyExtent(position, size, 0),))
                elif what == "move":
                    # A source that was never there: one that was moved may be asked for again.
                    source = path if tree.find(parts_of(path)).node is not None else f"/never{number}"
                    expected = local.move(source, other, options)
                    change = tree.move(parts_of(source), parts_of(other), options, TIME_MS)
                elif what == "remove":
                    expected = local.remove(path, recursive=flag)
                    change = tree.remove(parts_of(path), recursive=flag, now_ms=TIME_MS) or False
                else:
                    expected = local.make_folder(path)
                    change = tree.make_folder(parts_of(path), TIME_MS) or True
            except HadoopError:
                change = False
            assert bool(change) == expected, (seed, what, path, other, flag, options)
            done += expected
            if change and not isinstance(change, bool):
                position += 100
                tree.apply(change, position)
            assert seen(tree)[:2] == local.seen(), (seed, what, path, other, flag, options)
    assert done > 600
