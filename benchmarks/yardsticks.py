"""Run what servers are compared with, a plain copy, Debian's Redis and etcd, and a server itself.

Each runs in a process of its own, on the same disk, and ends when the block ends.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
BARE_COPY: Final = Path(os.environ.get("DOS_BARE_COPY", ROOT.parent / "shared" / "bench" / "bare_copy.py"))
_START_SECONDS_MAX: Final = 30.0

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts connections."""

    address: Address
    pid: int

    @property
    def peak_mb(self) -> float:
        """Return the high-water mark of its resident memory."""
        return self._memory_mb("VmHWM")

    @property
    def resident_mb(self) -> float:
        return self._memory_mb("VmRSS")

    def _memory_mb(self, field: str) -> float:
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None, field
        return int(found[1]) * 1024 / 1e6


def raise_at_sigterm() -> None:
    """Leave every block at SIGTERM too, so that processes end and temporary files are removed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextlib.contextmanager
def running_dos(data: Path, *options: str) -> Iterator[Running]:
    """Run a DOS server on a data directory, which is removed afterwards."""
    try:
        with _running("serve", "--data", str(data), "--listen", "127.0.0.1:0", *options) as running:
            yield running
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def running_gateway(url: str) -> Iterator[Running]:
    """Run a gateway of the tree that a URL names. It may be killed in the block."""
    with _running("gateway", "serve", url, "--listen", "127.0.0.1:0") as running:
        yield running


@contextlib.contextmanager
def _running(*arguments: str) -> Iterator[Running]:
    """Run a command of DOS whose first line names the address where it serves."""
    command = [sys.executable, "-m", "dos_cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        match = re.search(r" at ([\d.]+):(\d+)[,;]", process.stdout.readline())
        if match is None:
            raise RuntimeError(f"dos {arguments[0]} did not start")
        yield Running((match[1], int(match[2])), process.pid)
    finally:
        _end(process)


def redis_program() -> str | None:
    """Return Redis's server, if installed. Debian's `redis-tools` has the same program under another name."""
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")


@contextlib.contextmanager
def running_redis(program: str, data: Path) -> Iterator[Running]:
    """Run a Redis on its own port and directory, which answers after its log is synced."""
    data.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address: Address = free.getsockname()[:2]
    settings = {
        "port": address[1],
        "bind": "127.0.0.1",
        "dir": data,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "auto-aof-rewrite-percentage": 0,
        "loglevel": "warning",
    }
    words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    # the program decides by its own name, argv[0], what it is
    process = subprocess.Popen(["redis-server", *words], executable=program, stdout=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(process, address)
        yield Running(address, process.pid)
    finally:
        _end(process)
        shutil.rmtree(data, ignore_errors=True)


def etcd_program() -> str | None:
    """Return etcd, if this machine has it, or `./run bench writers` has unpacked its package."""
    unpacked = ROOT / ".venv" / "etcd" / "usr" / "bin" / "etcd"
    return str(unpacked) if unpacked.exists() else shutil.which("etcd")


@contextlib.contextmanager
def running_etcd(program: str, folder: Path, members: int) -> Iterator[list[Running]]:
    """Run a cluster of etcd. Yields its members, the leader first."""
    with contextlib.ExitStack() as free:
        sockets = [free.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * members)]
        addresses: list[Address] = [one.getsockname()[:2] for one in sockets]
    urls = [f"http://{host}:{port}" for host, port in addresses]
    clients, peers = urls[:members], urls[members:]
    cluster = ",".join(f"n{number}={url}" for number, url in enumerate(peers))
    processes = []
    try:
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            words = ["--name", f"n{number}", "--data-dir", str(folder / f"etcd-{number}")]
            words += ["--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            words += ["--initial-cluster", cluster, "--log-level", "error"]
            processes.append(subprocess.Popen([program, *words], stderr=subprocess.DEVNULL))
        found = [
            Running(address, process.pid) for address, process in zip(addresses, processes, strict=False)
        ]
        yield sorted(found, key=lambda member: not _leads(member))
    finally:
        for process in processes:
            _end(process)


def _leads(member: Running) -> bool:
    """Wait until a member of etcd knows the leader; return whether it leads."""
    end = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < end:
        asked = http.client.HTTPConnection(*member.address, timeout=5)
        try:
            asked.request("POST", "/v3/maintenance/status", b"{}")
            status = json.loads(asked.getresponse().read())
            if status.get("leader"):
                return bool(status["leader"] == status["header"]["member_id"])
        except OSError:
            pass  # it does not listen yet
        finally:
            asked.close()
        time.sleep(0.05)  # there is no event for another program that begins to listen
    raise RuntimeError("etcd did not start")


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", address: Address) -> None:
    end = time.monotonic() + _START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < end:
        try:
            with socket.create_connection(address, timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.02)  # there is no event for another program that begins to listen
    raise RuntimeError(f"redis-server did not start: exit code {process.poll()}")


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def bare_seconds(mode: str, amount: int, chunk: int, folder: Path) -> float:
    """Return the seconds that the plain copy took. Its own help lists the modes."""
    command = [sys.executable, str(BARE_COPY), mode, str(amount), str(chunk), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    seconds = re.search(r"([\d.]+) s,", done.stdout)
    if done.returncode or seconds is None:
        raise RuntimeError(f"{BARE_COPY.name} {mode} ended with {done.returncode}: {done.stderr[-500:]}")
    return float(seconds[1])
