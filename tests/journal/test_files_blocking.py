"""Journaled directories from plain threads: the same calls, results and errors as with trio."""

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dos.blocking
from dos.blocking import BlockingDirectory
from dos_protocol.errors import ClosedError, FencedError, LocalProtocolError, NotFoundError
from journal import Directory, LocalStore, restore
from journal.core.errors import FileConflictError, HistoryTrimmedError, UnsafePathError
from tests.journal.journaled_files import files

SMALL: dict[str, Any] = {"recovery_bytes": 4_000, "segment_bytes": 1_000}
Opening = Callable[..., AbstractContextManager[tuple[BlockingDirectory, Any]]]


@pytest.fixture(params=["in a store", "on the local disk"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Opens the same directory each time; yields it, and the store that has its journal."""
    live, name, epochs = tmp_path / "live", f"files.{os.urandom(4).hex()}", iter(range(1, 100))

    @contextmanager
    def on_disk(**options: Any) -> Iterator[tuple[BlockingDirectory, Any]]:
        with dos.blocking.open_local_directory(live, tmp_path / name, **options) as directory:
            yield directory, LocalStore(tmp_path / name)

    @contextmanager
    def in_store(**options: Any) -> Iterator[tuple[BlockingDirectory, Any]]:
        with (
            dos.blocking.open_store(request.getfixturevalue("store_url")) as store,
            store.claim(name, next(epochs), os.urandom(16)) as claim,
            dos.blocking.open_directory(live, claim, **options) as directory,
        ):
            yield directory, store

    on_disk.name = in_store.name = name  # type: ignore[attr-defined]
    return in_store if request.param == "in a store" else on_disk


@pytest.mark.process
def test_a_directory_is_listed_read_changed_and_opened_at_a_moment(opening: Opening, tmp_path: Path) -> None:
    with opening() as (directory, store):
        directory.append("log", b"one ")
        first = directory.append("log", b"two")
        directory.wait_synced(first)
        directory.checkpoint(1, 10)
        directory.write_at("d/hole", 3, b"x")
        directory.truncate("log", 2)
        directory.append("draft", b"text")
        directory.rename("draft", "letter")
        directory.append("gone", b"")
        directory.remove("gone")
        directory.wait_synced()
        assert directory.files() == {"log": 2, "d/hole": 4, "letter": 4}
        assert directory.read("d/hole") == b"\0\0\0x"
        assert directory.read("letter", 1, 2) == b"ex"
        assert directory.end.size > first.size
        done = dos.blocking.restore(tmp_path / "then", store, opening.name, at=first)  # type: ignore[attr-defined]
        assert (files(tmp_path / "then"), done.end) == ({"log": b"one two"}, first.size)
    for at in (dos.AtCheckpoint(1), first, first.size):
        with opening(at=at) as (directory, _):
            assert directory.files() == {"log": 7}
    with opening(at=datetime.now(UTC) + timedelta(days=1)) as (directory, _):
        assert directory.files() == {"log": 7}
    with pytest.raises(ClosedError):
        directory.append("log", b"closed")


@pytest.mark.process
def test_errors_are_those_of_trio(opening: Opening, tmp_path: Path) -> None:
    with opening(**SMALL) as (directory, store):
        directory.append("f", b"x")
        for error, call in [
            (UnsafePathError, lambda: directory.append("../f", b"x")),
            (UnsafePathError, lambda: directory.read("../f")),
            (FileConflictError, lambda: directory.append("f/g", b"x")),
            (FileNotFoundError, lambda: directory.remove("none")),
            (FileNotFoundError, lambda: directory.rename("none", "other")),
            (FileNotFoundError, lambda: directory.read("none")),
            (LocalProtocolError, lambda: directory.write_at("f", -1, b"x")),
            (LocalProtocolError, lambda: directory.checkpoint(0)),
        ]:
            with pytest.raises(error):
                call()
        assert directory.files() == {"f": 1}
        for number in range(50):
            directory.write_at("f", 0, bytes([number]) * 100)
        directory.wait_synced()
        name = opening.name  # type: ignore[attr-defined]
        directory.trim(store, name, directory.end.size)
        with pytest.raises(HistoryTrimmedError):
            dos.blocking.restore(tmp_path / "into", store, name, at=300)
        with pytest.raises((FencedError, LocalProtocolError)), opening() as (_, _):  # noqa: PT012
            while True:  # the first or a later one
                directory.wait_synced(directory.append("f", b"!"))
    with pytest.raises(HistoryTrimmedError), opening(at=300):
        pass
    with pytest.raises(NotFoundError), opening(chain="other", at=300):
        pass


def test_threads_share_a_directory(tmp_path: Path) -> None:
    with dos.blocking.open_local_directory(tmp_path / "live", tmp_path / "journal") as directory:

        def write(name: str) -> None:
            for _ in range(50):
                directory.append(name, b"0123456789")
                directory.append("all", b"0123456789")

        threads = [threading.Thread(target=write, args=(f"f{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        directory.wait_synced()
        assert directory.files() == {"all": 2_000, **{f"f{number}": 500 for number in range(4)}}
    with dos.blocking.open_local_directory(tmp_path / "again", tmp_path / "journal") as directory:
        assert files(tmp_path / "again") == files(tmp_path / "live")


def test_a_blocking_directory_has_the_methods_and_parameters_of_a_directory() -> None:
    public = {
        name: inspect.signature(getattr(Directory, name)).parameters.keys()
        for name in dir(Directory)
        if not name.startswith("_") and inspect.isfunction(getattr(Directory, name)) and name != "aclose"
    }
    for name, parameters in public.items():
        here = vars(BlockingDirectory)[name]
        if inspect.isfunction(here):
            assert inspect.signature(here).parameters.keys() == parameters
        else:
            assert here._method is getattr(Directory, name)
    opening, there = (
        inspect.signature(one).parameters.keys() for one in (dos.blocking.open_directory, Directory.open)
    )
    assert opening - there == set()
    assert (
        inspect.signature(dos.blocking.restore).parameters.keys() - {"options"}
        <= inspect.signature(restore).parameters.keys()
    )
