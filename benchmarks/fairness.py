"""Measure what one greedy client costs the others: `./run bench fairness`.

python benchmarks/fairness.py [CASE ...] [--pairs 5] [--seconds 6] [--folder DIR] [--json]

Eight polite clients append 4 KiB each, twenty times a second, and wait until each append is durable. Their
times count from when an append was due, so one that begins late because the one before it was late is
late. They are measured

- alone; - beside a greedy client of the *same server*, which does one thing as fast as it can; - beside
the same greedy client of *another server* on this machine: so much is due to the processors and the disk
that all of them share, and no server can be fair about it.

The three alternate, each with new servers. Greedy clients have a low priority (nice), because those of a
real service have their own processors. Reported are the medians of the p99 and of the ratios.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import select
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from load import run_apart
from load_sessions import DosSession, Watermarks, answer, dos_login
from yardsticks import raise_at_sigterm, running_dos

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_bench.core.figures import percentile  # noqa: E402
from dos_protocol import messages as m  # noqa: E402
from dos_protocol.digests import PrefixDigest  # noqa: E402
from dos_protocol.frames import FrameDecoder, encode_frame, frame_head  # noqa: E402
from dos_protocol.limits import KIB, MIB, entries_max  # noqa: E402
from dos_server.limits import list_entries_max  # noqa: E402

POLITE: Final = 8
EACH_S: Final = 0.05
BLOCK_BYTES: Final = 4 * KIB
WINDOW_BYTES: Final = 16 * MIB
OBJECT_MIB: Final = 64
NICE: Final = 10
WARM_S: Final = 0.5

Address = tuple[str, int]


def polite(address: Address, seconds: float) -> list[float]:
    """Append on a schedule from all polite clients. Returns the seconds of each append."""
    count = int(seconds / EACH_S)
    block = os.urandom(BLOCK_BYTES)
    sessions = [DosSession(address, f"polite.{number}", "log", block, count) for number in range(POLITE)]
    poll, clock = select.epoll(), time.perf_counter
    for session in sessions:
        poll.register(session.sock, select.EPOLLIN)
    by_number = {session.sock.fileno(): place for place, session in enumerate(sessions)}
    begin = clock() + EACH_S
    due = [begin + EACH_S * place / POLITE for place in range(POLITE)]
    sent, settled, times = [0] * POLITE, [0] * POLITE, list[float]()
    while min(settled) < count:
        now = clock()
        for place, session in enumerate(sessions):
            if sent[place] == settled[place] < count and due[place] <= now:
                session.sock.sendall(session.requests[sent[place]])
                sent[place] += 1
        waits = [due[place] for place in range(POLITE) if sent[place] == settled[place] < count]
        for number, _ in poll.poll(max(0.0, min(waits, default=now + 60) - clock())):
            place = by_number[number]
            done = sessions[place].settled(sessions[place].sock.recv(4_096))
            if done > settled[place]:
                times.append(clock() - due[place])
                settled[place] = done
                due[place] += EACH_S
    poll.close()
    return times[POLITE:]  # without the creation of the objects


def append_for_ever(address: Address, name: str) -> None:
    """Append 64 KiB again and again, with at most 16 MiB that are not durable."""
    block, fold, marks = os.urandom(64 * KIB), PrefixDigest(), Watermarks()
    sock = dos_login(address, f"greedy.{name}")
    while True:
        head = frame_head(m.encode(m.Append("log", fold.size, fold.value, block), 2))
        sock.sendall(head + block)
        fold.update(block)
        while fold.size - marks.synced > WINDOW_BYTES:
            marks.take(sock.recv(65_536))


def ask_for_ever(address: Address, directory: str, request: m.Message) -> None:
    """Send a request again and again, with eight of them under way, and discard the answers, which are all
    as long as the first one.
    """
    sock = dos_login(address, directory)
    asked = encode_frame(m.encode(request, 1))
    sock.sendall(asked)
    answer_bytes = len(encode_frame(m.encode(answer(sock, FrameDecoder()), 1)))
    sock.sendall(asked * 8)
    view, rest = memoryview(bytearray(4 * MIB)), 0
    while True:
        rest += sock.recv_into(view)
        if (done := rest // answer_bytes) > 0:
            sock.sendall(asked * done)
            rest -= done * answer_bytes


def one_stream(address: Address) -> None:
    append_for_ever(address, "w0")


def many_streams(address: Address) -> None:
    at_once([lambda name=f"w{number}": append_for_ever(address, name) for number in range(16)])


def gets(address: Address) -> None:
    at_once([lambda: ask_for_ever(address, "large", m.Get("log", 0, MIB))] * 4)


def lists(address: Address) -> None:
    at_once([lambda: ask_for_ever(address, "many", m.List("", "", list_entries_max))] * 4)


def at_once(works: list[Callable[[], None]]) -> None:
    for work in works:
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


CASES: Final[dict[str, tuple[str, Callable[[Address], None]]]] = {
    "stream": ("appends of 64 KiB without a pause, one connection", one_stream),
    "streams": ("the same over 16 connections, each to an object of its own", many_streams),
    "get": ("GET of 1 MiB again and again, 4 connections with 8 each", gets),
    "list": (
        f"LIST of {list_entries_max:,} of {entries_max:,} objects again and again, 4 connections with 8 each",
        lists,
    ),
}
"""Name -> what the greedy client does."""


def prepare(address: Address, case: str) -> None:
    """Make what the greedy client reads."""
    if case == "get":
        session = DosSession(address, "large", "log", os.urandom(MIB), OBJECT_MIB)
        for number, request in enumerate(session.requests, 1):
            session.sock.sendall(request)
            while session.settled(session.sock.recv(4_096)) < number:
                pass
    if case == "list":
        decoder, durable = FrameDecoder(), set[str]()
        with dos_login(address, "many") as sock:
            for number in range(entries_max):
                sock.sendall(encode_frame(m.encode(m.Append(f"object-{number:06d}", 0, 0, b"x"), 2)))
            while len(durable) < entries_max:  # a page lists only objects that exist
                ack = answer(sock, decoder)
                if isinstance(ack, m.DurabilityAck) and ack.synced:
                    durable.add(ack.name)


@contextlib.contextmanager
def greedy(work: Callable[[Address], None], address: Address) -> Iterator[None]:
    def run() -> None:
        os.nice(NICE)
        with contextlib.suppress(OSError, EOFError):  # the server has ended
            work(address)

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    try:
        time.sleep(WARM_S)  # it is at full speed then
        yield
        if not process.is_alive():
            raise RuntimeError("the greedy client has ended early: the figures would say nothing")
    finally:
        process.kill()
        process.join()


def measure(folder: Path, case: str, where: str, seconds: float) -> dict[str, float]:
    """Measure the polite clients once. where: "alone", "same" or "other"."""
    work = CASES[case][1]
    with running_dos(folder / "one") as one, contextlib.ExitStack() as stack:
        prepare(one.address, case)
        if where != "alone":
            target = one
            if where == "other":
                target = stack.enter_context(running_dos(folder / "other"))
                prepare(target.address, case)
            stack.enter_context(greedy(work, target.address))
        times = run_apart(polite, one.address, seconds)
    return {f"p{part}_ms": 1_000 * percentile(sorted(times), part / 100) for part in (50, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    raise_at_sigterm()
    found: dict[str, Any] = {}
    for case in options.cases or CASES:
        runs: dict[str, list[dict[str, float]]] = {"alone": [], "same": [], "other": []}
        for _ in range(options.pairs):
            for where, results in runs.items():
                with tempfile.TemporaryDirectory(prefix="dos-bench-", dir=options.folder) as folder:
                    results.append(measure(Path(folder), case, where, options.seconds))
                print(case, where, results[-1], file=sys.stderr, flush=True)
        figures: dict[str, Any] = {
            where: {key: statistics.median(one[key] for one in results) for key in results[0]}
            for where, results in runs.items()
        }
        for name, other in (("ratio", "alone"), ("ratio_other", "other")):
            pairs = zip(runs["same"], runs[other], strict=True)
            figures[name] = statistics.median(ours["p99_ms"] / theirs["p99_ms"] for ours, theirs in pairs)
        found[case] = figures
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
