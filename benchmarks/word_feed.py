"""A socket that sends lines to each client that connects: the input of Spark and Flink.

A line is a key and the time when it was sent, in microseconds; 0 for lines that only build the state. A
reader cannot read a line again: Spark and Flink keep their input in memory or lose it. That costs them
less than the input of a DOS region costs, which is on two disks before it is read.
"""

import random
import socket
import threading
import time
from collections.abc import Iterable


class WordFeed:
    """A listener on its own port. `send` sends to the reader that connected last."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._reader: socket.socket | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                reader, _ = self._listener.accept()
            except OSError:
                return
            reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._reader = reader
                self._changed.notify_all()

    def send(self, keys: Iterable[int], *, timed: bool = True) -> float:
        """Send lines for these keys and return the time. They are lost if no reader is connected."""
        with self._changed:
            self._changed.wait_for(lambda: self._reader is not None)
            reader = self._reader
        now = time.time()
        stamp = int(now * 1e6) if timed else 0
        assert reader is not None
        try:
            reader.sendall("".join(f"k{key:07d} {stamp}\n" for key in keys).encode())
        except OSError:
            with self._changed:
                if self._reader is reader:
                    self._reader = None
        return now

    def paced(self, keys: int, rows_per_s: float, pace_s: float, sent: list[float] | None = None) -> None:
        """Begin to send at this rate, a batch every `pace_s`, until `close`."""
        threading.Thread(target=self._pace, args=(keys, rows_per_s, pace_s, sent), daemon=True).start()

    def _pace(self, keys: int, rows_per_s: float, pace_s: float, sent: list[float] | None) -> None:
        rng, begun, done = random.Random(2), time.monotonic(), 0
        while not self._stop.wait(pace_s):
            due = int((time.monotonic() - begun) * rows_per_s) - done
            if due > 0:
                when = self.send(rng.randrange(keys) for _ in range(due))
                done += due
                if sent is not None:
                    sent.append(when)

    def rest(self) -> None:
        """Stop the paced lines."""
        self._stop.set()

    def close(self) -> None:
        self.rest()
        self._listener.close()
        if self._reader is not None:
            self._reader.close()
