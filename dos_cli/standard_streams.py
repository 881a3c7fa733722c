"""The three standard streams of every command: what happens when one is closed, full, or nobody reads it.

Commands print, and know nothing of this. A stream that cannot be written ends the program where the write
happens, with `SystemExit`, which no command takes for an error of a store or a file:

- whoever reads standard output had enough (`dos get ... | head`): quietly, exit code 0;
- standard output is full, or closed (`>&-`): in one line on standard error, exit code 2.

Reading a standard input that is closed (`<&-`) ends it in the same way. A closed stream gets a stand-in:
without one, the next file or socket that is opened would take its number. What an encoding lacks is printed
escaped.
"""

import errno
import io
import os
import sys
from typing import Any, Final, NoReturn

CANNOT_WRITE: Final = 2
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class _Output(io.FileIO):
    """Standard output that ends the program instead of raising OSError. Swallows what comes after that: the
    interpreter flushes once more when it ends.
    """

    _over = False

    def write(self, data: Any, /) -> int:
        if self._over:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except KeyboardInterrupt:
            self._over = True  # it may have been written: what holds it back must not write it once more
            raise
        except OSError as error:
            self._over = True
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None
            _end("standard output is closed" if error.errno == errno.EBADF else _full(error))


class _ClosedInput(io.RawIOBase):
    """Standard input that was closed before the program began."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _INPUT

    def readinto(self, buffer: Any, /) -> int:
        del buffer
        _end("standard input is closed")


def _full(error: OSError) -> str:
    return f"cannot write standard output: {error.strerror}"


def _end(words: str) -> NoReturn:
    print(f"dos: {words}", file=sys.stderr)
    raise SystemExit(CANNOT_WRITE) from None


def prepare() -> None:
    """Replace the streams of `sys` by those described above. Call it once, before anything is opened."""
    for number, mode in ((_INPUT, os.O_RDONLY), (_OUTPUT, os.O_RDONLY), (_ERRORS, os.O_WRONLY)):
        _occupy(number, mode)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(_ERRORS, "w", closefd=False), write_through=True)
    before = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(_OUTPUT, "w", closefd=False)),
        encoding=None if before is None else before.encoding,
        errors="backslashreplace",
        line_buffering=os.isatty(_OUTPUT),
    )


def _occupy(number: int, mode: int) -> None:
    """Where no file has this number, open one; standard output's cannot be written, so that writes fail."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, mode)  # takes the lowest free number, which is this one
