"""What programs see of a disk, and what it may contain after a power failure.

    page    4 KiB, written back on its own: any of its versions since the last sync may be the one that is
            there, also an older one than that of the page before it
    sector  512 B, never torn. A page may be: its first sectors of one version, the others of another
    size    any that the file had since the last sync, or one on the way: ahead of the data (zeros) or behind
            it
    entry   a name made, removed or changed: there or not, as long as the folder is not synced; a rename as a
            whole, but each of two folders is synced on its own. The entries of all folders come in order or
            each as it likes, by the seed
    sync    makes durable what came before it *began*; what comes while it runs may or may not be

So it is as bad as POSIX allows, and worse than most file systems are: ext4 keeps entries in order, and an
fsync of a new file brings its name along.

No clock and no files; random numbers are an argument. `crash` leaves the state unchanged.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.power import operations as op

PAGE = 4096
SECTOR = 512
ROOT = 1

Image = dict[str, bytes | None]
"""What is on a disk: path to content; None for a folder."""


@dataclass
class FileNode:
    """A file. `seen` is what programs see; `stable` and `stable_size` are durable; the rest may become so."""

    seen: bytearray = field(default_factory=bytearray)
    stable: dict[int, bytes] = field(default_factory=dict)
    stable_size: int = 0
    versions: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def write(self, number: int, position: int, data: bytes) -> None:
        end = position + len(data)
        if end > len(self.seen):
            self.seen.extend(bytes(end - len(self.seen)))
            self.sizes.append((number, end))
        self.seen[position:end] = data
        self._note_pages(number, position, end)

    def resize(self, number: int, size: int) -> None:
        before = len(self.seen)
        if size < before:
            del self.seen[size:]
        else:
            self.seen.extend(bytes(size - before))
        self.sizes.append((number, size))
        self._note_pages(number, min(size, before), max(size, before))

    def _note_pages(self, number: int, start: int, end: int) -> None:
        for page in range(start // PAGE, -(-end // PAGE)):
            content = bytes(self.seen[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0")
            self.versions.setdefault(page, []).append((number, content))

    def sync(self, since: int) -> None:
        for page, versions in list(self.versions.items()):
            done = [content for number, content in versions if number < since]
            if done:
                self.stable[page] = done[-1]
            self.versions[page] = versions[len(done) :]
            if not self.versions[page]:
                del self.versions[page]
        sizes = [size for number, size in self.sizes if number < since]
        if sizes:
            self.stable_size = sizes[-1]
        self.sizes = self.sizes[len(sizes) :]

    def crash(self, rng: random.Random) -> bytes:
        """One of the contents that the disk may have now."""
        keeps = rng.choice((0.0, 0.3, 0.5, 0.7, 1.0))
        pages = dict(self.stable)
        for page, versions in sorted(self.versions.items()):
            if rng.random() < keeps:
                pages[page] = self._one_of(rng, page, [content for _, content in versions])
        return self._joined(pages, self._size(rng))

    def bare(self) -> bytes:
        """The content when nothing is there but what was synced."""
        return self._joined(self.stable, self.stable_size)

    @staticmethod
    def _joined(pages: dict[int, bytes], size: int) -> bytes:
        return b"".join(pages.get(page, bytes(PAGE)) for page in range(-(-size // PAGE)))[:size]

    def _one_of(self, rng: random.Random, page: int, contents: list[bytes]) -> bytes:
        content = contents[-1] if rng.random() < 0.5 else rng.choice(contents)
        if rng.random() < 0.3:
            other = rng.choice([self.stable.get(page, bytes(PAGE)), *contents])
            edge = SECTOR * rng.randrange(1, PAGE // SECTOR)
            pair = (content, other) if rng.random() < 0.5 else (other, content)
            content = pair[0][:edge] + pair[1][edge:]
        return content

    def _size(self, rng: random.Random) -> int:
        if not self.sizes:
            return self.stable_size
        sizes = [self.stable_size, *(size for _, size in self.sizes)]
        way = rng.randrange(4)
        if way == 0:
            return self.stable_size
        if way == 1:
            return rng.randint(min(sizes), max(sizes))
        return rng.choice(sizes) if way == 2 else sizes[-1]


Change = Callable[[dict[str, int]], None]


@dataclass
class FolderNode:
    """A folder: name to node, as seen and as durable, and the changes between the two, in order."""

    seen: dict[str, int] = field(default_factory=dict)
    stable: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[int, Change]] = field(default_factory=list)

    def change(self, number: int, change: Change) -> None:
        change(self.seen)
        self.changes.append((number, change))

    def sync(self, since: int) -> None:
        done = [change for number, change in self.changes if number < since]
        for change in done:
            change(self.stable)
        self.changes = self.changes[len(done) :]

    def crash(self, keeps: Callable[[int], bool]) -> dict[str, int]:
        entries = dict(self.stable)
        for number, change in self.changes:
            if keeps(number):
                change(entries)
        return entries


class DiskState:
    """Files and folders after some operations."""

    def __init__(self) -> None:
        self.files: dict[int, FileNode] = {}
        self.folders: dict[int, FolderNode] = {ROOT: FolderNode()}
        self.count = 0

    @classmethod
    def of(cls, image: Image) -> "DiskState":
        """A disk that holds the image, all of it durable."""
        state = cls()
        nodes = {"": ROOT}
        for path, content in sorted(image.items()):
            folder, _, name = path.rpartition("/")
            nodes[path] = node = len(nodes) + 1
            if content is None:
                state.apply(op.MakeFolder(folder=nodes[folder], name=name, node=node))
            else:
                state.apply(op.MakeFile(folder=nodes[folder], name=name, node=node))
                state.apply(op.Write(node=node, position=0, data=content))
        for one in (*state.files.values(), *state.folders.values()):
            one.sync(state.count)
        return state

    def apply(self, operation: op.AnyOperation) -> None:
        """The next operation."""
        number = self.count
        match operation:
            case op.MakeFile(folder=folder, name=name, node=node):
                self.files[node] = FileNode()
                self.folders[folder].change(number, _put(name, node))
            case op.MakeFolder(folder=folder, name=name, node=node):
                self.folders[node] = FolderNode()
                self.folders[folder].change(number, _put(name, node))
            case op.Link(folder=folder, name=name, node=node):
                self.folders[folder].change(number, _put(name, node))
            case op.Write(node=node, position=position, data=data):
                self.files[node].write(number, position, data)
            case op.Resize(node=node, size=size):
                self.files[node].resize(number, size)
            case op.Remove(folder=folder, name=name):
                self.folders[folder].change(number, _take(name))
            case op.Rename(folder=folder, name=name, new_name=new_name, new_folder=new_folder):
                node = self.folders[folder].seen[name]
                if new_folder in (0, folder):
                    self.folders[folder].change(number, _move(name, new_name, node))
                else:
                    self.folders[new_folder].change(number, _put(new_name, node))
                    self.folders[folder].change(number, _take(name))
            case op.SyncFile(node=node, since=since):
                self.files[node].sync(since)
            case op.SyncFolder(node=node, since=since):
                self.folders[node].sync(since)
        self.count += 1

    def crash(self, seed: int) -> Image:
        """One of the disks that may be there when the power goes now."""
        rng = random.Random(seed)
        return self._image(self._entries_kept(rng), lambda file: file.crash(rng))

    def bare(self) -> Image:
        """The barest of them: nothing is there but what was synced."""
        return self._image(lambda number: False, FileNode.bare)

    def seen(self) -> Image:
        """What programs see; it is one of them too."""
        return self._image(lambda number: True, lambda file: bytes(file.seen))

    def _image(self, keeps: Callable[[int], bool], content: Callable[[FileNode], bytes]) -> Image:
        image: Image = {}
        contents: dict[int, bytes] = {}
        waiting = [("", ROOT)]
        while waiting:
            above, folder = waiting.pop()
            for name, node in sorted(self.folders[folder].crash(keeps).items()):
                path = f"{above}/{name}" if above else name
                if node in self.folders:
                    image[path] = None
                    waiting.append((path, node))
                else:
                    if node not in contents:  # it may have two names
                        contents[node] = content(self.files[node])
                    image[path] = contents[node]
        return image

    def _entries_kept(self, rng: random.Random) -> Callable[[int], bool]:
        """Which changes of entries are on the disk: each as it likes, or in order up to one of them."""
        numbers = sorted(number for folder in self.folders.values() for number, _ in folder.changes)
        if rng.random() < 0.5:
            share = rng.choice((0.0, 0.5, 0.5, 1.0))
            kept = {number for number in numbers if rng.random() < share}
        else:
            kept = set(numbers[: rng.randint(0, len(numbers))])
        return kept.__contains__


def replayed(operations: Iterable[op.AnyOperation]) -> DiskState:
    """The state after the operations."""
    state = DiskState()
    for operation in operations:
        state.apply(operation)
    return state


def _put(name: str, node: int) -> Change:
    return lambda entries: entries.update({name: node})


def _take(name: str) -> Change:
    def change(entries: dict[str, int]) -> None:
        entries.pop(name, None)

    return change


def _move(name: str, new_name: str, node: int) -> Change:
    def change(entries: dict[str, int]) -> None:
        if entries.get(name) == node:
            del entries[name]
        entries[new_name] = node

    return change
