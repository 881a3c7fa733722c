"""A durable stream of 64 KiB appends to one server, against the same bytes moved bare.

    python benchmarks/durable_stream.py [--megabytes 512] [--pairs 5] [--bare ../shared/bench/bare_copy.py]
    [--json]

One client process sends appends to one server process over loopback and waits until everything is
acknowledged `synced`: frame digests, prefix digests, extents with their own digests, group commit. The
yardstick, `bare_copy.py file`, moves as many bytes from a socket to a file, with a sync every 64 MB and at
the end, and nothing in between. Alternating pairs, medians; the figure that counts is the ratio, since both
drift with the disk. Exit 0; 1 when the ratio is below `--aim`.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import refused
from dos_protocol.frames import FrameDecoder, encode_frame, frame_head

ROOT = Path(__file__).parent.parent
APPEND_BYTES = 64 * 1024
WINDOW_BYTES = 16 * 1024 * 1024


@contextmanager
def running_server(data: Path) -> Iterator[tuple[str, int, int]]:
    """Host, port and process id of a server of its own."""
    command = [sys.executable, "-m", "dos_cli", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        match = re.search(r"at ([\d.]+):(\d+),", process.stdout.readline())
        assert match is not None, "the server did not start"
        yield match[1], int(match[2]), process.pid
    finally:
        process.terminate()
        process.wait(30)


class Stream:
    """A raw session that appends to one object and counts what is synced."""

    def __init__(self, address: tuple[str, int], directory: str) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = FrameDecoder()
        self.synced = 0
        self._ask(m.Hello(client="durable_stream"))
        self._ask(m.ChangeDirectory(directory, claim=True, epoch=1, writer_id=b"b" * 16))

    def _ask(self, message: m.Message) -> None:
        self.sock.sendall(encode_frame(m.encode(message, 1)))
        self.take(wait=True)

    def take(self, *, wait: bool) -> None:
        """Read what the server says; `wait` for something."""
        try:
            data = self.sock.recv(65_536, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            raise EOFError("the server closed the connection")
        self.decoder.receive(data)
        while (frame := self.decoder.next_frame()) is not None:
            message = m.decode(frame)
            if isinstance(message, m.Error):
                raise refused(message)
            if isinstance(message, m.Watermark):
                self.synced = message.synced

    def run(self, total: int, block: bytes) -> None:
        """Append until `total` bytes are synced."""
        fold = PrefixDigest()
        while fold.size < total:
            append = m.Append("stream", fold.size, fold.value, block)
            head = frame_head(m.encode(append, 2))
            sent = self.sock.sendmsg([head, block])
            if sent < len(head) + len(block):
                self.sock.sendall((head + block)[sent:])
            fold.update(block)
            self.take(wait=False)
            while fold.size - self.synced > WINDOW_BYTES:
                self.take(wait=True)
        while self.synced < total:
            self.take(wait=True)


def stream_rate(total: int, folder: Path) -> tuple[float, float]:
    """MB/s of the durable stream, and the server's resident MB at its end."""
    block = os.urandom(APPEND_BYTES)
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        running_server(Path(data) / "server") as (host, port, pid),
    ):
        stream = Stream((host, port), "bench")
        begin = time.perf_counter()
        stream.run(total, block)
        seconds = time.perf_counter() - begin
        status = Path(f"/proc/{pid}/status").read_text()
        resident = re.search(r"VmHWM:\s+(\d+) kB", status)
        stream.sock.close()
    return total / seconds / 1e6, int(resident[1]) / 1000 if resident else 0.0


def bare_rate(total: int, folder: Path, script: Path) -> float:
    """MB/s of the bare copy."""
    command = [sys.executable, str(script), "file", str(total), str(APPEND_BYTES), str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    seconds = re.search(r"([\d.]+) s,", text)
    assert seconds is not None, text
    return total / float(seconds[1]) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    default = os.environ.get("DOS_BARE_COPY", str(ROOT.parent / "shared" / "bench" / "bare_copy.py"))
    parser.add_argument("--bare", type=Path, default=Path(default), help="the yardstick's script")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where both write")
    parser.add_argument("--aim", type=float, default=0.7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    total = options.megabytes * 1_000_000 // APPEND_BYTES * APPEND_BYTES
    if not options.bare.exists():
        print(f"no yardstick at {options.bare}: say --bare or DOS_BARE_COPY", file=sys.stderr)
        return 2
    pairs = []
    for _ in range(options.pairs):
        bare = bare_rate(total, options.folder, options.bare)
        ours, resident = stream_rate(total, options.folder)
        pairs.append({"bare": bare, "ours": ours, "ratio": ours / bare, "resident_mb": resident})
        if not options.json:
            print(
                f"bare {bare:7.0f} MB/s   durable stream {ours:7.0f} MB/s   ratio {ours / bare:.2f}",
                flush=True,
            )
    result = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    if options.json:
        print(
            json.dumps({"name": "durable_stream", "megabytes": total / 1e6, "median": result, "pairs": pairs})
        )
    else:
        print(
            f"median: bare {result['bare']:.0f}, durable stream {result['ours']:.0f} MB/s, "
            f"ratio {result['ratio']:.2f} (aim {options.aim}), server {result['resident_mb']:.0f} MB resident"
        )
    return 0 if result["ratio"] >= options.aim else 1


if __name__ == "__main__":
    sys.exit(main())
