"""The load generator: sends the prepared requests of a session in one of three patterns, and measures times.

pipelined one connection, a number of requests in flight writers many connections, each with one request in
flight one at a time one connection, one request in flight

It runs in a process of its own (`run_apart`), so that it has its own core on a machine with two. It
reports how much of its core it used: near 1.0, the generator is the bottleneck.

It uses raw sockets and the clock; `load_sessions` provides the requests.
"""

import multiprocessing
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from load_sessions import Session


@dataclass(frozen=True, slots=True)
class Load:
    """The result. `times_s`: the times of requests, if measured; `busy`: the generator's use of its core."""

    requests: int
    seconds: float
    busy: float
    times_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the requests per second."""
        return self.requests / self.seconds


def warm_up(session: Session) -> None:
    """Complete the first request, so that the figures do not include the creation of the object."""
    session.sock.sendall(session.requests[0])
    while session.settled(session.sock.recv(4_096)) < 1:
        pass


def pipelined(session: Session, depth: int) -> Load:
    """Keep `depth` requests in flight until all are settled."""
    warm_up(session)
    sock, requests = session.sock, session.requests
    total, sent, settled = len(requests), 1, 1
    begin, worked = time.perf_counter(), time.process_time()
    while settled < total:
        goal = min(total, settled + depth)
        if goal > sent:
            sock.sendall(b"".join(requests[sent:goal]))
            sent = goal
        settled = session.settled(sock.recv(262_144))
    seconds = time.perf_counter() - begin
    return Load(total - 1, seconds, (time.process_time() - worked) / seconds)


def one_at_a_time(session: Session) -> Load:
    """Send a request, wait until it is settled, send the next."""
    warm_up(session)
    times = []
    sock = session.sock
    begin, worked = time.perf_counter(), time.process_time()
    for number, request in enumerate(session.requests[1:], 2):
        sent = time.perf_counter()
        sock.sendall(request)
        while session.settled(sock.recv(4_096)) < number:
            pass
        times.append(time.perf_counter() - sent)
    seconds = time.perf_counter() - begin
    return Load(len(times), seconds, (time.process_time() - worked) / seconds, times)


def writers(sessions: Sequence[Session]) -> Load:
    """Each session sends a request, waits until it is settled, and sends the next."""
    for session in sessions:
        warm_up(session)
    times: list[float] = []
    clock = time.perf_counter
    poll = select.epoll()
    by_number = {session.sock.fileno(): session for session in sessions}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    sent_at: dict[int, float] = {}
    settled = dict.fromkeys(by_number, 1)
    begin, worked = clock(), time.process_time()
    for number, session in by_number.items():
        sent_at[number] = clock()
        session.sock.sendall(session.requests[1])
    while sent_at:
        for number, _ in poll.poll(60):
            session = by_number[number]
            done = session.settled(session.sock.recv(4_096))
            if done == settled[number]:
                continue
            settled[number] = done
            now = clock()
            times.append(now - sent_at[number])
            if done < len(session.requests):
                sent_at[number] = now
                session.sock.sendall(session.requests[done])
            else:
                del sent_at[number]
    seconds = clock() - begin
    poll.close()
    return Load(len(times), seconds, (time.process_time() - worked) / seconds, times)


def run_apart(work: Callable[..., Any], *args: Any) -> Any:
    """Run `work` in a process of its own and return its result. Raises RuntimeError if it failed."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_send_result, args=(sender, work, args), daemon=True)
    process.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        result, error = None, "it ended without a result"
    process.join()
    if error:
        raise RuntimeError(f"the load generator failed: {error}")
    return result


def _send_result(sender: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        sender.send((work(*args), ""))
    except Exception as error:  # sent to the parent, which raises it
        sender.send((None, f"{type(error).__name__}: {error}"))
