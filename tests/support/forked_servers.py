"""Real server processes, forked from one that has imported what `dos serve` imports.

The tests start some eight hundred servers, and each new interpreter would take a third of a second of a core
to import the same modules. A forked server is a process as any other: its own id, files, memory and signals,
and it ends as `python -m dos_cli serve` ends. `tests/dos_server/test_process.py` and the tests of `dos chaos`
start new interpreters.

A server becomes a child of the process of the tests: for the moment of its birth, that process adopts
orphans (PR_SET_CHILD_SUBREAPER), and the process between them ends at once.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Final

PRELOADED: Final = (
    *("dos_cli.__main__", "dos_cli.main", "dos_server.serve_cli", "dos_server.embedded", "trio"),
    *("dos_client.cli.settings", "typer._adapters", "pydantic.type_adapter", "secrets", "sysconfig"),
)
_SET_CHILD_SUBREAPER: Final = 36
_REQUEST_BYTES_MAX: Final = 1 << 16
_lock = threading.Lock()
_origin: "Origin | None" = None


class Origin:
    """The process that servers are forked from. It ends when its socket is closed."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", "tests.support.forked_servers", str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number])

    def fork(self, arguments: list[str], environment: dict[str, str], out: int, log: int) -> int:
        """Fork a server. Return its process id. Raises OSError if the origin has died."""
        request = json.dumps([arguments, environment, str(Path.cwd())]).encode()
        if len(request) > _REQUEST_BYTES_MAX:
            raise OSError("a request of this size has not been provided for")
        adopt_orphans(adopt=True)
        try:
            socket.send_fds(self._socket, [request], [out, log])
            answer = self._socket.recv(32)
        finally:
            adopt_orphans(adopt=False)
        if not answer:
            raise OSError("the process that forks servers has died")
        return int(answer)


def adopt_orphans(*, adopt: bool) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


class ForkedProcess(subprocess.Popen[str]):
    """A forked server with the interface of a process that was started."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: int) -> None:
        global _origin
        self._child_created = False  # for the destructor of the class above
        reading, writing = os.pipe()
        try:
            with _lock:
                _origin = _origin or Origin()
                self.pid = _origin.fork(arguments, environment, writing, log)
        finally:
            os.close(writing)
        self.args = arguments
        self.returncode: int | None = None
        self.stdin = self.stderr = None
        self.stdout: IO[str] = os.fdopen(reading)
        self._descriptor = os.pidfd_open(self.pid)
        self._ended = select.poll()  # not `select`, which takes no descriptor above 1,023
        self._ended.register(self._descriptor, select.POLLIN)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._descriptor)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._ended.poll(None if left is None else left * 1000)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def main(number: int) -> None:
    """Fork a server for each request. Returns in the server, which then runs the command."""
    import gc
    import importlib
    import random

    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["dos_cli.main"].load_command("serve")
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=number)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
        if not request:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            server = os.fork()
            if server == 0:
                break
            os.write(writing, b"%d" % server)
            os._exit(0)
        os.waitpid(between, 0)  # from here on the server is a child of the tests
        requests.send(os.read(reading, 32))
        for descriptor in (*descriptors, reading, writing):
            os.close(descriptor)
    os.close(reading)
    os.close(writing)
    arguments, environment, folder = json.loads(request)
    for descriptor, standard in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    requests.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    sys.argv = ["dos", *arguments]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end it
    main(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from dos_cli.__main__ import main as run

    run()
