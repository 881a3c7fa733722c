"""Files of settings that commands change while servers read them."""

import os
from collections.abc import Callable
from pathlib import Path

from dos_protocol.errors import LocalProtocolError


def edit_file(file: Path, edit: Callable[[bytes | None], bytes], command: str) -> None:
    """Replace the file by a changed one, durably. A server reads the old or the new one, never a part.

    `edit` returns the new content for the old one, None if there is no file. What it raises leaves the
    file as it was. Raises LocalProtocolError if the file cannot be read or written, or `command` changes it
    already.
    """
    new = file.with_name(f"{file.name}.new")
    try:
        # It is the lock of the command, too: of two at once, one would undo what the other has done.
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        text = f"{new} exists: another `{command}` runs, or was killed; remove the file if none runs"
        raise LocalProtocolError(text) from error
    except OSError as error:
        raise LocalProtocolError(f"{new} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(edit(_content_of(file)))
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _content_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalProtocolError(f"{file} cannot be read: {error.strerror}") from error
