"""The honest client that is measured during an attack: a separate process.

    python -m tests.attack.honest HOST PORT TOKEN

Two connections that stay: one pings, one appends 1 KiB, 64 KiB and 1 MiB in turn and waits until each
append is synced. A third one is new each time: it connects, says HELLO, opens a directory, appends 64 KiB
and waits. A line on standard input ends a period: its figures are one line of JSON on standard output. The
end of standard input ends the process.

It reports its own waiting times and makes no judgment.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from tests.support.wire import Wire

PAUSE_SECONDS = 0.01
NEW_PAUSE_SECONDS = 0.1
SIZES = (1 << 10, 64 << 10, 1 << 10, 1 << 20)
OBJECT_BYTES_MAX = 8 << 20


class Waits:
    """The waits of one kind of request, by period: seconds each. A wait that has not ended counts so far."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.errors: list[str] = []
        self._seconds: list[float] = []
        self._began: float | None = None
        self._guard = threading.Lock()

    def measure(self, call: Callable[[], object]) -> None:
        with self._guard:
            self._began = time.monotonic()
        call()
        with self._guard:
            if self._began is not None:
                self._seconds.append(time.monotonic() - self._began)
            self._began = None

    def period(self) -> dict[str, float | int | list[str]]:
        """The figures since the last call, in milliseconds."""
        with self._guard:
            seconds, self._seconds = self._seconds, []
            if self._began is not None:
                seconds.append(time.monotonic() - self._began)
            errors, self.errors = self.errors, []
        seconds.sort()

        def at(part: float) -> float:
            return round(1000 * seconds[min(int(part * len(seconds)), len(seconds) - 1)], 2)

        figures = {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)} if seconds else {}
        return {"count": len(seconds), **figures, "errors": errors[:5]}


def keep_at_it(waits: Waits, one_life: Callable[[], None]) -> None:
    """Until the process ends. A lost connection is an error, and made again."""
    while True:
        try:
            one_life()
        except Exception as error:
            waits.errors.append(f"{type(error).__name__}: {error}"[:200])
            time.sleep(NEW_PAUSE_SECONDS)


def main() -> None:
    address, token = (sys.argv[1], int(sys.argv[2])), sys.argv[3].encode()
    hello = m.Hello(token=token, client="honest")
    pings, appends, newcomers = Waits("ping"), Waits("append"), Waits("new")

    def ping() -> None:
        with Wire(address, hello=hello) as wire:
            while True:
                pings.measure(lambda: wire.ask(m.Ping(b"?")))
                time.sleep(PAUSE_SECONDS)

    epoch, numbers = 0, itertools.count()

    def append() -> None:
        nonlocal epoch
        epoch += 1
        directory = f"honest-{os.getpid()}"
        with Wire(address, hello=hello) as wire:
            wire.claim(directory, epoch, os.urandom(16))
            name, fold, count = f"{epoch}.0", PrefixDigest(), 0
            while True:
                payload = bytes(SIZES[count % len(SIZES)])
                size, digest = fold.size, fold.value
                fold.update(payload)

                def one(
                    name: str = name, size: int = size, digest: int = digest, data: bytes = payload
                ) -> None:
                    wire.send(m.Append(name, size, digest, data))
                    wire.wait_synced(name, size + len(data))

                appends.measure(one)
                count += 1
                if fold.size > OBJECT_BYTES_MAX:
                    name, fold = f"{epoch}.{count}", PrefixDigest()
                time.sleep(PAUSE_SECONDS)

    def newcomer() -> None:
        payload = bytes(SIZES[1])

        def one(name: str) -> None:
            with Wire(address, hello=hello) as wire:
                wire.ask(m.ChangeDirectory(f"new-{os.getpid()}"))
                wire.append(name, b"", payload)
                wire.wait_synced(name, len(payload))

        while True:
            number = next(numbers)
            newcomers.measure(lambda name=f"n{number}": one(name))
            time.sleep(NEW_PAUSE_SECONDS)

    for waits, one_life in ((pings, ping), (appends, append), (newcomers, newcomer)):
        threading.Thread(target=keep_at_it, args=(waits, one_life), daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({one.kind: one.period() for one in (pings, appends, newcomers)}), flush=True)


if __name__ == "__main__":
    main()
