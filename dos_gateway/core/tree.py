"""The tree of files: what a request may change, and what a record changes. Pure.

A request is checked against the tree, which gives a record; the record is appended and applied in the same
step. A replay applies the same records in the same order. Bodies are extents of the chain itself.

Two rules are not those of a usual file system:

- A moved node remembers its source. A client whose answer was lost asks for the same rename again, and the
  source is gone: then the rename is done already.
- Hadoop's `FileContext.rename(OVERWRITE)` over WebHDFS is DELETE of the target, not recursive, then RENAME
  without overwriting. A client that dies between them would have removed a committed file. So a DELETE of a
  file beside which temporary files of it lie (`.NAME.UUID[.TIDn].tmp`) only marks it as *replaceable* by
  these: it stays, is listed, and the RENAME of one of them replaces it. The mark ends with the last of them.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from dos_gateway.core.hadoop import (
    FileStatus,
    HadoopError,
    Parts,
    Summary,
    exists,
    not_found,
    parts_of,
    refused,
    text_of,
)
from dos_gateway.core.space import BodyExtent, BodySegments, SegmentNote
from dos_gateway.limits import path_parts_max, snapshot_nodes

_TEMPORARY: Final = re.compile(
    r"\.(?P<name>.+)\.[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.TID\d+)?\.tmp"
)
"""Spark's name of a temporary file of NAME."""


# --- records: each is applied as it stands ------------------------------------------------------------------


class PutFile(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """A file with its body. No extents and a body beside it in the record: the body is there."""

    path: str
    mtime_ms: int
    id: int
    extents: tuple[BodyExtent, ...] = ()
    moved_from: str = ""


class MakeFolder(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A directory, with those above it that are missing."""

    path: str
    mtime_ms: int
    moved_from: str = ""


class MoveNode(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    source: str
    target: str
    mtime_ms: int


class RemoveNode(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    path: str
    mtime_ms: int


class MarkReplaceable(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """These names beside the file may replace it."""

    path: str
    temporaries: tuple[str, ...]


class CopyForward(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A body lies elsewhere now."""

    id: int
    extents: tuple[BodyExtent, ...]


class TreeHead(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """The first record of a snapshot. segments: those below it that hold bodies. newest_ms: times never
    decrease. served_at: the address of the gateway that wrote it; max_bytes: its `--max-bytes`, 0 without.
    """

    segments: tuple[SegmentNote, ...]
    next_id: int
    newest_ms: int
    served_at: str
    max_bytes: int = 0


class TreeNodes(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Nodes of a snapshot, each directory before what it has."""

    nodes: tuple[PutFile | MakeFolder | MarkReplaceable, ...]


Change = PutFile | MakeFolder | MoveNode | RemoveNode | MarkReplaceable | CopyForward
TreeRecord = Change | TreeHead | TreeNodes


class TreeNode:
    """A file, or a directory (`children`). position: the logical offset just past the last record that
    changed it, or the names in it. marks: of a directory, file -> the temporary files that may replace it.
    """

    __slots__ = ("children", "extents", "id", "length", "marks", "moved_from", "mtime_ms", "name", "position")

    def __init__(self, name: str, mtime_ms: int, position: int = 0, *, moved_from: str = "") -> None:
        self.name, self.mtime_ms, self.position, self.moved_from = name, mtime_ms, position, moved_from
        self.children: dict[str, TreeNode] | None = None
        self.marks: dict[str, set[str]] | None = None
        self.id = self.length = 0
        self.extents: tuple[BodyExtent, ...] = ()

    @property
    def is_dir(self) -> bool:
        return self.children is not None

    @property
    def status(self) -> FileStatus:
        children = 0 if self.children is None else len(self.children)
        return FileStatus(self.name, self.is_dir, self.length, self.mtime_ms, self.id, children)

    def files(self) -> "Iterator[TreeNode]":
        """Yield the files below, or this one."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.children is None:
                yield node
            else:
                waiting += node.children.values()

    def height(self) -> int:
        """Return the parts of the longest path below."""
        height, level = 0, [self]
        while level := [child for node in level if node.children for child in node.children.values()]:
            height += 1
        return height


def _folder(name: str, mtime_ms: int, position: int = 0) -> TreeNode:
    node = TreeNode(name, mtime_ms, position)
    node.children = {}
    return node


class TreeWalk(NamedTuple):
    """The end of a walk: the node, None if there is none; the deepest node on the way that exists; and the
    logical offset on which both rest.
    """

    node: TreeNode | None
    deepest: TreeNode
    position: int


class Tree:
    """Invariant: `space` counts exactly the extents of the files in the tree."""

    def __init__(self, segments: Iterable[SegmentNote] = ()) -> None:
        self.root = _folder("", 0)
        self.space = BodySegments(segments)
        self.by_id: dict[int, TreeNode] = {}
        self.next_id = 1
        self.newest_ms = 0
        self.served_at = ""
        self.max_bytes = 0
        self.sign_ms = 0
        """The time of the last record that has one."""
        self.position = 0
        """The logical offset just past the last change."""

    # --- looking --------------------------------------------------------------------------------------------

    def find(self, parts: Parts) -> TreeWalk:
        node, position = self.root, self.root.position
        for part in parts:
            child = node.children.get(part) if node.children is not None else None
            if child is None:
                return TreeWalk(None, node, position)
            node, position = child, max(position, child.position)
        return TreeWalk(node, node, position)

    def rests_on(self, *paths: Parts) -> int:
        """Return the logical offset on which everything rests that can be seen at these paths."""
        return max(self.find(parts).position for parts in paths)

    def get(self, parts: Parts) -> TreeNode:
        """Return the node. Raises HadoopError if there is none."""
        node = self.find(parts).node
        if node is None:
            raise not_found(text_of(parts))
        return node

    def get_file(self, parts: Parts) -> TreeNode:
        node = self.get(parts)
        if node.is_dir:
            raise not_found(f"{text_of(parts)} is a directory")
        return node

    def listing(self, parts: Parts) -> list[FileStatus]:
        """Return what a directory has, by name; of a file, itself without a name."""
        node = self.get(parts)
        if node.children is None:
            return [node.status._replace(name="")]
        return [child.status for _, child in sorted(node.children.items())]

    def listing_after(self, parts: Parts, after: str, most: int) -> tuple[list[FileStatus], int]:
        """Return at most so many entries of a listing, of names beyond `after`, and how many follow them. A
        large directory is not sorted for each part of it.
        """
        node = self.get(parts)
        if node.children is None:
            return ([] if after else self.listing(parts)), 0
        names = [name for name in node.children if name > after]
        part = nsmallest(most, names)
        return [node.children[name].status for name in part], len(names) - len(part)

    def summary(self, parts: Parts) -> Summary:
        files = directories = length = 0
        waiting = [self.get(parts)]
        while waiting:
            node = waiting.pop()
            if node.children is None:
                files, length = files + 1, length + node.length
            else:
                directories += 1
                waiting += node.children.values()
        return Summary(files, directories, length)

    # --- checking: what a request would change --------------------------------------------------------------

    def check_put(self, parts: Parts, *, overwrite: bool, create_parent: bool = True) -> None:
        """Raise HadoopError if a file may not be put there. Without `create_parent`, its directory exists."""
        found = self.find(parts)
        if found.node is not None and (found.node.is_dir or not overwrite):
            raise exists(text_of(parts))
        self._check_above(parts, found)
        if not create_parent and self.find(parts[:-1]).node is None:
            java = "java.io.FileNotFoundException"
            raise HadoopError(java, f"Parent directory doesn't exist: {text_of(parts[:-1])}")

    def make_folder(self, parts: Parts, now_ms: int) -> MakeFolder | None:
        """Return the record, None if the directory exists. Raises HadoopError."""
        found = self.find(parts)
        if found.node is not None:
            if not found.node.is_dir:
                raise exists(text_of(parts))
            return None
        self._check_above(parts, found)
        return MakeFolder(text_of(parts), self.time_ms(now_ms))

    def _check_above(self, parts: Parts, found: TreeWalk) -> None:
        if not found.deepest.is_dir and found.node is None:
            java = "org.apache.hadoop.fs.ParentNotDirectoryException"
            raise HadoopError(java, f"{text_of(parts)}: {found.deepest.name} is a file")

    def remove(self, parts: Parts, *, recursive: bool, now_ms: int) -> RemoveNode | MarkReplaceable | None:
        """Return the record, None if there is nothing to remove. Raises HadoopError."""
        node = self.find(parts).node
        if node is None or not parts:
            return None
        if node.children and not recursive:
            java = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
            raise HadoopError(java, f"{text_of(parts)} is not empty")
        if not recursive and not node.is_dir:
            parent = self.get(parts[:-1])
            assert parent.children is not None, "a node has a directory above it"
            if temporaries := tuple(name for name in parent.children if _is_temporary(name, node.name)):
                return MarkReplaceable(text_of(parts), temporaries)
        return RemoveNode(text_of(parts), self.time_ms(now_ms))

    def move(self, source: Parts, target: Parts, options: str | None, now_ms: int) -> MoveNode | bool:
        """Return the record; True if it is done already; False if it is refused without an exception, as
        Hadoop's rename without options does. options: None, or those of the request, such as NONE or
        OVERWRITE. Raises HadoopError.
        """
        if options is None:
            into = self.find(target).node
            if into is not None and into.is_dir and source:
                target = (*target, source[-1])
            try:
                return self._move(source, target, (), now_ms)
            except HadoopError:
                return source == target and self.find(source).node is not None
        return self._move(source, target, options.split(","), now_ms)

    def _move(self, source: Parts, target: Parts, options: Collection[str], now_ms: int) -> MoveNode | bool:
        node, at = self.find(source).node, self.find(target).node
        if node is None:
            if at is not None and at.moved_from == text_of(source):
                return True  # it was done before, and its answer was lost
            raise not_found(text_of(source))
        if target[: len(source)] == source:
            raise refused(f"{text_of(target)} is {text_of(source)}, or lies in it")
        if at is not None and not self._may_replace(node, at, target, source, options):
            raise exists(text_of(target))
        above = self.find(target[:-1]).node
        if above is None:
            raise not_found(f"the parent of {text_of(target)}")
        if not above.is_dir:
            java = "org.apache.hadoop.fs.ParentNotDirectoryException"
            raise HadoopError(java, f"{text_of(target)}: {above.name} is a file")
        if node.is_dir and len(target) + node.height() > path_parts_max:
            raise refused(f"a path has at most {path_parts_max} parts: below {text_of(target)} were longer")
        return MoveNode(text_of(source), text_of(target), self.time_ms(now_ms))

    def _may_replace(
        self, node: TreeNode, at: TreeNode, target: Parts, source: Parts, options: Collection[str]
    ) -> bool:
        if node.is_dir != at.is_dir:
            return False
        if "OVERWRITE" in options:
            return not at.children
        marks = self.get(target[:-1]).marks or {}
        marked = source[:-1] == target[:-1] and node.name in marks.get(at.name, ())
        return "NONE" in options and not node.is_dir and marked

    def time_ms(self, now_ms: int) -> int:
        """Return the time of a change. Spark deletes files of RocksDB that are older than the oldest one in
        use, so times never decrease, whatever the clocks of gateways show.
        """
        return max(self.newest_ms, now_ms)

    # --- applying: the same at the writer and at a replay; cannot fail after the check ----------------------

    @classmethod
    def after(cls, head: TreeHead, segments: Iterable[SegmentNote]) -> "Tree":
        """Return the tree at the head of a snapshot. segments: those that the chain has from there on."""
        tree = cls((*head.segments, *segments))
        tree.next_id, tree.newest_ms = head.next_id, head.newest_ms
        tree.served_at, tree.max_bytes = head.served_at, head.max_bytes
        return tree

    def apply(self, record: Change | TreeNodes, position: int, *, restores: bool = False) -> None:
        """Apply a record that ends at this logical offset. restores: it is a node of a snapshot, in which the
        directories above have their own times.
        """
        if isinstance(record, PutFile):
            self._put(record, position, 0 if restores else record.mtime_ms)
        elif isinstance(record, MakeFolder):
            above_ms = 0 if restores else record.mtime_ms
            node = self._make_folders(parts_of(record.path), record.mtime_ms, position, above_ms)
            node.mtime_ms, node.moved_from = record.mtime_ms, record.moved_from
        elif isinstance(record, MoveNode):
            self._move_node(record, position)
        elif isinstance(record, RemoveNode):
            parts = parts_of(record.path)
            self._unlink(self.get(parts[:-1]), parts[-1], record.mtime_ms, position)
        elif isinstance(record, MarkReplaceable):
            parts = parts_of(record.path)
            parent = self.get(parts[:-1])
            parent.marks = {**(parent.marks or {}), parts[-1]: set(record.temporaries)}
            self.get(parts).position = position
        elif isinstance(record, CopyForward):
            if (held := self.by_id.get(record.id)) is not None:
                self.space.drop(held.id, held.extents)
                held.extents = record.extents
                self.space.add(held.id, held.extents)
        else:
            for one in record.nodes:
                self.apply(one, position, restores=True)
        self.position = position
        if (time_ms := getattr(record, "mtime_ms", 0)) > 0:
            self.sign_ms, self.newest_ms = time_ms, max(self.newest_ms, time_ms)

    def _put(self, record: PutFile, position: int, above_ms: int) -> None:
        parts = parts_of(record.path)
        parent = self._make_folders(parts[:-1], record.mtime_ms, position, above_ms)
        node = TreeNode(parts[-1], record.mtime_ms, moved_from=record.moved_from)
        node.id, node.extents = record.id, record.extents
        node.length = sum(extent.size for extent in record.extents)
        self._link(parent, node, above_ms, position)
        self.by_id[node.id] = node
        self.space.add(node.id, node.extents)
        self.next_id = max(self.next_id, record.id + 1)

    def _move_node(self, record: MoveNode, position: int) -> None:
        source, target = parts_of(record.source), parts_of(record.target)
        parent = self.get(source[:-1])
        assert parent.children is not None, "it was checked"
        node = parent.children[source[-1]]
        self._unlink(parent, source[-1], record.mtime_ms, position, keep=True)
        node.name, node.moved_from = target[-1], record.source
        self._link(self.get(target[:-1]), node, record.mtime_ms, position)

    def _make_folders(self, parts: Parts, mtime_ms: int, position: int, above_ms: int) -> TreeNode:
        node = self.root
        for part in parts:
            assert node.children is not None, "it was checked"
            child = node.children.get(part)
            if child is None:
                child = _folder(part, mtime_ms, position)
                self._link(node, child, above_ms, position)
            node = child
        return node

    def _link(self, parent: TreeNode, node: TreeNode, above_ms: int, position: int) -> None:
        assert parent.children is not None, "it was checked"
        if node.name in parent.children:
            self._unlink(parent, node.name, above_ms, position)
        parent.children[node.name] = node
        node.position = parent.position = position
        parent.mtime_ms = max(parent.mtime_ms, above_ms)

    def _unlink(
        self, parent: TreeNode, name: str, mtime_ms: int, position: int, *, keep: bool = False
    ) -> None:
        assert parent.children is not None, "it was checked"
        node = parent.children.pop(name)
        parent.position, parent.mtime_ms = position, max(parent.mtime_ms, mtime_ms)
        if parent.marks:
            parent.marks.pop(name, None)
            for marked in [one for one, temporaries in parent.marks.items() if name in temporaries]:
                parent.marks[marked].discard(name)
                if not parent.marks[marked]:
                    del parent.marks[marked]
        if not keep:
            for file in node.files():
                del self.by_id[file.id]
                self.space.drop(file.id, file.extents)

    # --- snapshots ------------------------------------------------------------------------------------------

    def snapshot(self, served_at: str, max_bytes: int = 0) -> Iterator[TreeHead | TreeNodes]:
        """Yield records from which the same tree is made. Nothing may be applied meanwhile."""
        yield TreeHead(self.space.notes, self.next_id, self.newest_ms, served_at, max_bytes)
        batch: list[PutFile | MakeFolder | MarkReplaceable] = []
        for one in self._nodes():
            batch.append(one)
            if len(batch) == snapshot_nodes:
                yield TreeNodes(tuple(batch))
                batch.clear()
        yield TreeNodes(tuple(batch))

    def _nodes(self) -> Iterator[PutFile | MakeFolder | MarkReplaceable]:
        waiting: list[tuple[str, TreeNode]] = [("", self.root)]
        while waiting:
            path, node = waiting.pop()
            if node.children is None:
                yield PutFile(path, node.mtime_ms, node.id, node.extents, node.moved_from)
                continue
            yield MakeFolder(path or "/", node.mtime_ms, node.moved_from)
            inner = [(f"{path}/{name}", child) for name, child in node.children.items()]
            if not node.marks:
                waiting += inner
                continue
            # The marks follow the files that they name.
            yield from (
                PutFile(at, one.mtime_ms, one.id, one.extents, one.moved_from)
                for at, one in inner
                if not one.is_dir
            )
            for name, temporaries in node.marks.items():
                yield MarkReplaceable(f"{path}/{name}", tuple(sorted(temporaries)))
            waiting += [(at, one) for at, one in inner if one.is_dir]


def _is_temporary(name: str, of: str) -> bool:
    match = _TEMPORARY.fullmatch(name)
    return match is not None and match["name"] == of
