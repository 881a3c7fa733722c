"""The table of bad input, its rows about names, one test a cell, for version 1: what a client names, and what
were planted in the data directory.

A planted thing is answered CORRUPT: the copy counts for nothing, and nothing behind it is read or written.
"""

import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CorruptDataError, ErrorCode
from dos_server import embedded
from dos_server.disk import RealDisk
from dos_server.embedded import OpenServer
from dos_server.storage import Storage
from tests.dos_protocol.test_rules import HOSTILE
from tests.dos_server.core_requests import to_claim
from tests.support.data_tree import tree
from tests.support.wire import Wire

CONTENT = b"what was there before"
SECRET = b"nothing of this server's"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(data) as running:
        fill(running)
        yield running


def fill(server: embedded.EmbeddedServer) -> None:
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        wire.append("o", b"", CONTENT)
        wire.wait_synced("o", len(CONTENT))


NAMES = [
    *HOSTILE,
    *("a/b", "o/", "/o", "../dir/o", "a/" * 127, "/" * 255, "x" * 255, "~root", "$HOME", "`id`", "*"),
    *("a ", " a", "o\t", "\x7f", "\x1b[2J", "nul\0", "o\0.x", ".meta", ".marks", ".repair.o.1", ".torn.o.0"),
    *("caf\u00e9", "cafe\u0301", "\u200fo", "o\u202e", "\u2025", "\uff0e\uff0e", "\ud7ff", "\U0001f600"),
]
"""Those that are not Latin-1 go out as UTF-8, as a client might send them."""


def on_the_wire(name: str) -> str:
    with contextlib.suppress(UnicodeEncodeError):
        name.encode("latin-1")
        return name
    return name.encode().decode("latin-1")


REQUESTS: dict[str, Callable[[str], m.Message]] = {
    "APPEND": lambda name: m.Append(name, 0, 0, b"x"),
    "GET": lambda name: m.Get(name, 0, 1),
    "STAT": lambda name: m.Stat(name),
    "DELETE": lambda name: m.Delete(name),
    "CWD": lambda name: m.ChangeDirectory(name),
    "a claim": lambda name: to_claim(6, directory=name),
}


@pytest.mark.parametrize("request_kind", REQUESTS)
@pytest.mark.parametrize("name", sorted(set(NAMES)), ids=ascii)
def test_a_bad_name_is_refused_and_the_session_continues(
    server: embedded.EmbeddedServer,
    data: Path,
    name: str,
    request_kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # EVIDENCE-OF: P-8
    caplog.set_level(logging.INFO, "dos.server")
    before = tree(data)
    with Wire(server.address) as wire:
        wire.claim("dir", 5)
        answer = wire.ask(REQUESTS[request_kind](on_the_wire(name)))
        assert isinstance(answer, m.Error), answer
        assert answer.code == ErrorCode.BAD_NAME
        assert answer.message.isprintable(), "nothing is echoed raw"
        assert answer.message.isascii()
        assert wire.ask(m.Get("o", 0, 100)).payload == CONTENT
    assert tree(data) == before
    assert caplog.messages == []


@pytest.mark.parametrize("name", sorted(set(NAMES)), ids=ascii)
def test_listing_by_a_bad_name_gives_names_and_no_more(server: embedded.EmbeddedServer, name: str) -> None:
    with Wire(server.address) as wire:
        for directory in ("", "dir"):
            if directory:
                wire.ask(m.ChangeDirectory(directory))
            listing = wire.ask(m.List(prefix=on_the_wire(name)))
            assert {info.name for info in listing.entries} <= ({"o"} if directory else {"dir"})


ODD = ["CON", "con", "Con", "nul", "a.", "a..b", "a-", "1", "X" * 128, "x" * 128, "COM1.txt", "0x10"]


def test_odd_names_of_the_grammar_and_twins_in_case_are_objects_of_their_own(tmp_path: Path) -> None:
    with embedded.start(tmp_path / "data") as fresh:
        with Wire(fresh.address) as wire:
            wire.claim("dir")
            for name in ODD:
                wire.append(name, b"", name.encode())
                wire.wait_synced(name, len(name))
        with Wire(fresh.address) as wire:
            opened = wire.ask(m.ChangeDirectory("dir"))
            assert sorted(info.name for info in opened.entries) == sorted(ODD)
            assert [wire.ask(m.Get(name, 0, 200)).payload.decode() for name in ODD] == ODD
            for name in ODD:
                assert wire.ask(m.ChangeDirectory(name)).epoch == 0


# Planted in the data directory


def plant_symlink(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "file")


def plant_dangling_symlink(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "not there")


def plant_symlink_to_a_folder(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def plant_symlink_to_itself(place: Path, outside: Path) -> None:
    place.symlink_to(place.name)


def plant_hardlink(place: Path, outside: Path) -> None:
    os.link(outside / "file", place)


def plant_fifo(place: Path, outside: Path) -> None:
    os.mkfifo(place)


def plant_folder(place: Path, outside: Path) -> None:
    place.mkdir()


def plant_socket(place: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        old = Path.cwd()
        os.chdir(place.parent)  # the name of a socket has at most 107 bytes
        try:
            one.bind(place.name)
        finally:
            os.chdir(old)


def plant_device(place: Path, outside: Path) -> None:
    try:
        os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device node needs root with CAP_MKNOD")


def plant_block_device(place: Path, outside: Path) -> None:
    try:
        os.mknod(place, 0o600 | stat.S_IFBLK, os.makedev(7, 255))
    except PermissionError:
        pytest.skip("making a device node needs root with CAP_MKNOD")


Plant = Callable[[Path, Path], None]
PLANTS: list[Plant] = [
    plant_symlink, plant_dangling_symlink, plant_symlink_to_a_folder, plant_symlink_to_itself, plant_hardlink,
    plant_fifo, plant_folder, plant_socket, plant_device, plant_block_device,
]  # fmt: skip


def plant_name(plant: Plant) -> str:
    return plant.__name__.removeprefix("plant_").replace("_", " ")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the data directory that nobody may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(SECRET)
    (folder / "o").write_bytes(SECRET)
    yield folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"file": SECRET, "o": SECRET}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """The data directory of a server that was stopped."""
    with embedded.start(tmp_path / "data") as server:
        fill(server)
    return tmp_path / "data"


@pytest.mark.parametrize("plant", PLANTS, ids=plant_name)
@pytest.mark.parametrize("name", ["o", "planted"])
def test_a_planted_object_counts_for_nothing_and_is_left_as_it_is(
    filled: Path, outside: Path, plant: Plant, name: str
) -> None:
    # EVIDENCE-OF: P-2
    place = filled / "d" / "dir" / name
    place.unlink(missing_ok=True)
    plant(place, outside)
    planted = tree(filled)[f"d/dir/{name}"]
    with embedded.start(filled) as server:
        with Wire(server.address) as wire:
            opened = wire.claim("dir", 6)
            (info,) = [one for one in opened.entries if one.name == name]
            assert info.corrupt
            assert wire.ask(m.Get(name, 0, 100)).code == ErrorCode.CORRUPT
            assert wire.ask(m.Get(name, 0, 100, 1_000)).code == ErrorCode.CORRUPT
            assert wire.ask(m.Stat(name, 5)).code == ErrorCode.CORRUPT
            assert wire.ask(m.Append(name, 0, 0, b"x")).code == ErrorCode.CORRUPT
            append = m.Append(name, len(CONTENT), prefix_digest(CONTENT), b"x")
            assert wire.ask(append).code == ErrorCode.CORRUPT
            wire.append("another", b"", b"goes on")
            wire.wait_synced("another", 7)
        with Wire(server.address) as wire:
            infos = {one.name: one for one in wire.ask(m.ChangeDirectory("dir")).entries}
            assert infos[name].corrupt
            assert not infos["another"].corrupt
    assert tree(filled)[f"d/dir/{name}"] == planted


def places(files: list[str], folder: str) -> list[Any]:
    """Each plant in each place; but a folder where one belongs is none."""
    return [
        pytest.param(place, plant, id=f"{place} is a {plant_name(plant)}")
        for place in (*files, folder)
        for plant in PLANTS
        if (place, plant) != (folder, plant_folder)
    ]


@pytest.mark.parametrize(("place", "plant"), places(["d/dir/.claim", "d/dir/.marks"], "d/dir"))
def test_a_directory_with_a_planted_file_of_the_server_cannot_be_opened(
    filled: Path, outside: Path, plant: Plant, place: str
) -> None:
    # EVIDENCE-OF: P-2, P-4
    if place == "d/dir":
        (filled / place).rename(filled.parent / "moved")
    else:
        (filled / place).unlink()
    plant(filled / place, outside)
    before = tree(filled)
    with embedded.start(filled) as server, Wire(server.address) as wire:
        for request in (
            m.ChangeDirectory("dir"),
            to_claim(6),
        ):
            answer = wire.ask(request)
            assert isinstance(answer, m.Error), answer
            assert answer.code == ErrorCode.CORRUPT
            assert answer.message.isprintable()
        assert wire.ask(m.Get("o", 0, 100)).code == ErrorCode.NOT_READY
        wire.claim("elsewhere")
        wire.append("another", b"", b"goes on")
        wire.wait_synced("another", 7)
    after = {name: entry for name, entry in tree(filled).items() if "elsewhere" not in name}
    assert after.keys() == before.keys()
    assert all(
        after[name] == before[name] for name in before if name not in (".", "d", "stamps", "directories")
    )


OWN_FILES = ["identity", "store", "lock", "stamps", "witnessed"]


@pytest.mark.parametrize(("place", "plant"), places(OWN_FILES, "d"))
def test_a_server_does_not_start_on_a_planted_file_of_its_own(
    filled: Path, outside: Path, plant: Plant, place: str
) -> None:
    if place == "d":
        (filled / "d").rename(filled.parent / "moved")
    else:
        (filled / place).unlink(missing_ok=True)
    plant(filled / place, outside)
    before = tree(filled)
    handles = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises((OSError, CorruptDataError)):
        OpenServer(filled, "127.0.0.1", 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles, "what was opened is closed"
    assert tree(filled) == before


@pytest.mark.parametrize(
    "name", [".claim.new", ".repair.o.1", ".repair.x\n2026 fine", ".torn.o.0", "a b", "\x1b[2J", "\udcff"]
)
@pytest.mark.parametrize("plant", [plant_symlink, plant_hardlink, plant_folder], ids=plant_name)
def test_names_that_are_no_objects_are_not_followed_and_not_shown(
    filled: Path, outside: Path, plant: Plant, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant(filled / "d" / "dir" / name, outside)
    with embedded.start(filled) as server, Wire(server.address) as wire:
        claimed = wire.claim("dir", 6)
        if name != ".claim.new":
            assert [one.name for one in claimed.entries] == ["o"]
            assert wire.ask(m.Get("o", 0, 100)).payload == CONTENT
        else:
            assert isinstance(claimed, m.Error)
    assert all(line.isprintable() and line.isascii() for line in caplog.messages), caplog.messages


class SwappingDisk(RealDisk):
    """The real disk; before the nth call the folder `d/dir` is swapped for a symlink, as a rival would."""

    def __init__(self, root: Path, when: int, elsewhere: Path) -> None:
        super().__init__(root)
        self.calls = 0
        self._folder_path = root / "d" / "dir"
        self._when = when
        self._elsewhere = elsewhere

    def _folder(self, folder: str) -> contextlib.AbstractContextManager[int]:
        self.calls += 1
        if self.calls == self._when:
            self._folder_path.rename(self._folder_path.parent.parent / "moved")
            self._folder_path.symlink_to(self._elsewhere)
        return super()._folder(folder)


def test_a_directory_swapped_for_a_symlink_during_cwd_is_never_followed(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-2
    other = tmp_path / "elsewhere"
    with embedded.start(other) as rival, Wire(rival.address) as wire:
        wire.claim("dir", 9)
        wire.append("o", b"", SECRET)
        wire.wait_synced("o", len(SECRET))
    before = tree(other)
    refused, when = 0, 0
    while True:
        when += 1
        root = tmp_path / f"root-{when}"
        with embedded.start(root) as server:
            fill(server)
        disk = SwappingDisk(root, when, other / "d" / "dir")
        storage = Storage(disk)
        try:
            try:
                storage.start(bytes(16))
            except OSError:
                refused += 1
                continue
            loaded = storage.load("dir")
            storage.stop()
        finally:
            disk.shut()
            assert tree(other) == before, f"swapped before call {when}"
        if loaded.problem:
            refused += 1
        else:
            assert loaded.claim.epoch == 5, f"swapped before call {when}"
            assert loaded.objects["o"].size in (0, len(CONTENT))
            assert loaded.objects["o"].corrupt or loaded.objects["o"].size == len(CONTENT)
        if disk.calls < when:
            break
    assert refused > 3
