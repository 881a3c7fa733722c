"""The three standard streams of every command, also if one is closed or full or its reader has ended.

Commands just print. A write or read that cannot succeed raises `SystemExit`, which no command mistakes for an
error of a store or a file:

| case | standard error | exit code |
|---|---|---|
| the reader of standard output has ended (`dos get ... | head`) | nothing | 0 |
| standard output is full, or closed (`>&-`) | one line | 2 |
| standard input is closed (`<&-`) and is read | one line | 2 |

A closed stream is replaced by /dev/null, because the next file or socket would otherwise take its number.
Characters that the encoding lacks are printed escaped.
"""

import errno
import io
import os
import sys
from typing import Any, Final, NoReturn

CANNOT_WRITE: Final = 2
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class _Output(io.FileIO):
    """Standard output that ends the program instead of raising OSError.

    It discards later writes, because the interpreter flushes once more when it ends.
    """

    _over = False

    def write(self, data: Any, /) -> int:
        if self._over:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except KeyboardInterrupt:
            self._over = True  # the data may have been written, and the buffer must not write them again
            raise
        except OSError as error:
            self._over = True
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None
            _end("standard output is closed" if error.errno == errno.EBADF else _full(error))


class _ClosedInput(io.RawIOBase):
    """A standard input that was closed before the program started."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _INPUT

    def readinto(self, buffer: Any, /) -> int:
        del buffer
        _end("standard input is closed")


def _full(error: OSError) -> str:
    return f"cannot write standard output: {error.strerror}"


def _end(text: str) -> NoReturn:
    print(f"dos: {text}", file=sys.stderr)
    raise SystemExit(CANNOT_WRITE) from None


def prepare() -> None:
    """Replace the streams of `sys`. Call it once, before any file or socket is opened."""
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
    """Open /dev/null with this number if it is free; for standard output read-only, so that writes fail."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, mode)  # takes the lowest free number, which is this one
