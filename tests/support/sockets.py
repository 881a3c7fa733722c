"""Break a TCP connection between two processes from outside: both ends see it end, without their cooperation.

Linux only (/proc, `pidfd_getfd`). The processes are descendants of this one, which a container permits it to
inspect. `ss -K` would do the same, if the kernel was built for it.
"""

import ctypes
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

_PIDFD_GETFD = 438
"""The system call's number, the same on every architecture; Python has no name for it."""
_ESTABLISHED = "01"


def connections_of(pid: int) -> dict[int, tuple[str, str]]:
    """Descriptor -> (local, remote) address in the kernel's words, of each established TCP connection."""
    ends = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _ESTABLISHED:
            ends[words[9]] = (words[1], words[2])
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            kind, _, inode = str(link.readlink()).partition(":")
            if kind == "socket" and inode.strip("[]") in ends:
                found[int(link.name)] = ends[inode.strip("[]")]
    return found


def break_between(one: int, other: int) -> int:
    """End every TCP connection between two processes. Returns how many there were. Raises OSError."""
    theirs = {(remote, local) for local, remote in connections_of(other).values()}
    descriptors = [fd for fd, ends in connections_of(one).items() if ends in theirs]
    with ExitStack() as stack:  # all are held first: with one connection lost, a process closes the others
        copies = [stack.enter_context(socket.socket(fileno=_copy_of(one, fd))) for fd in descriptors]
        for copy in copies:
            copy.shutdown(socket.SHUT_RDWR)  # of the connection, not of this descriptor
    return len(descriptors)


def _copy_of(pid: int, descriptor: int) -> int:
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        copy: int = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"descriptor {descriptor} of process {pid}: {os.strerror(number)}")
        return copy
    finally:
        os.close(process)
