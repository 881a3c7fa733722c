"""Files of settings that commands change while servers read them."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dos_protocol.errors import LocalProtocolError
from dos_tls import sync_folder


def edit_file(file: Path, edit: Callable[[bytes | None], bytes], command: str) -> None:
    """Replace the file by a changed one, durably. A server reads the old or the new one, never a part.

    `edit` returns the new content for the old one, None if there is no file. What it raises leaves the
    file as it was. Raises LocalProtocolError if the file cannot be read or written, or `command` changes it
    already.
    """
    new = file.with_name(f"{file.name}.new")
    with _locked(new, command) as stream:
        content = edit(_content_of(file))
        stream.truncate(0)  # what a command that was killed has left
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        new.replace(file)
    sync_folder(file.parent)


@contextmanager
def _locked(new: Path, command: str) -> Iterator[BinaryIO]:
    """Open the new file, locked: of two commands at once, one would undo what the other has done.

    The lock ends with its process, so a file that a killed command has left blocks nobody. On an error the
    file is removed.
    """
    while True:
        try:
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalProtocolError(f"{new} cannot be written: {error.strerror}") from error
        with os.fdopen(descriptor, "r+b") as stream:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"another `{command}` changes {new.with_suffix('')} now: run it again"
                raise LocalProtocolError(text) from error
            if not _is_at(new, descriptor):
                continue  # the other command has just finished: this is its file, which has another name now
            os.fchmod(descriptor, 0o600)
            try:
                yield stream
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _content_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalProtocolError(f"{file} cannot be read: {error.strerror}") from error
