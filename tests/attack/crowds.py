"""The connections of attackers: a separate process, which ends when its standard input ends.

    python -m tests.attack.crowds NAME HOST PORT TOKEN SCALE

A crowd is a number of connections that do the same. One that the server ends is made again, as an attacker
would.

Only loopback connections, of a bounded number. `honest` is the client that is measured.
"""

import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import trio

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_protocol.frames import Frame, encode_frame, frame_head
from dos_protocol.limits import payload_bytes_max
from tests.support import garbage as rubbish

AGAIN_SECONDS = 0.05
FULL_DIRECTORY = 6_000
SIZES = (payload_bytes_max, payload_bytes_max // 4, 64 << 10)
Pump = Callable[["Crowd", trio.SocketStream, int], Awaitable[None]]


class Crowd:
    """So many connections, each of which runs `pump`. `scale`: of 1, the attack as documented."""

    def __init__(self, address: tuple[str, int], token: bytes, scale: float) -> None:
        self.address = address
        self.scale = scale
        self.hello = encode_frame(m.encode(m.Hello(token=token, client="attacker"), 1))
        self.numbers = itertools.count(10)

    def frame(self, message: m.Message) -> bytes:
        return encode_frame(m.encode(message, next(self.numbers)))

    def many(self, message: m.Message, count: int) -> bytes:
        return b"".join(self.frame(message) for _ in range(count))

    @asynccontextmanager
    async def drained(self, stream: trio.SocketStream) -> AsyncIterator[None]:
        """Answers are read and dropped meanwhile; the end of them ends the block."""
        async with trio.open_nursery() as nursery:

            async def drain() -> None:
                while await stream.receive_some(1 << 20):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(drain)
            yield
            nursery.cancel_scope.cancel()

    async def run(self, count: int, pump: Pump) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(max(1, int(count * self.scale))):
                nursery.start_soon(self._keep_at_it, pump, number)

    async def _keep_at_it(self, pump: Pump, number: int) -> None:
        while True:
            try:
                async with await trio.open_tcp_stream(*self.address) as stream:
                    await pump(self, stream, number)
            except* OSError:
                pass
            except* trio.BrokenResourceError:
                pass
            await trio.sleep(AGAIN_SECONDS)


def announced(payload_bytes: int) -> bytes:
    """The header of a frame that never comes."""
    return frame_head(Frame(3, 7, bytes(20), bytes(payload_bytes)))[:32]


def begins_frames(*, hello: bool, sent_bytes: int = 0) -> Pump:
    async def pump(crowd: Crowd, stream: trio.SocketStream, number: int) -> None:
        count = payload_bytes_max if sent_bytes else SIZES[number % len(SIZES)]
        async with crowd.drained(stream):
            await stream.send_all((crowd.hello if hello else b"") + announced(count))
            await stream.send_all(bytes(sent_bytes))
            await trio.sleep_forever()

    return pump


def floods(requests: Callable[[Crowd, int], Iterator[bytes]], *, reads: bool = True) -> Pump:
    """Sends without pause; the first bytes open the session."""

    async def pump(crowd: Crowd, stream: trio.SocketStream, number: int) -> None:
        async def send() -> None:
            for data in requests(crowd, number):
                await stream.send_all(data)
            await trio.sleep_forever()

        if reads:
            async with crowd.drained(stream):
                await send()
        else:
            await send()

    return pump


def flood_of(
    make: Callable[[int], m.Message], directory: str = ""
) -> Callable[[Crowd, int], Iterator[bytes]]:
    """The same request again and again, in a directory."""

    def requests(crowd: Crowd, number: int) -> Iterator[bytes]:
        yield crowd.hello + (crowd.frame(m.ChangeDirectory(directory)) if directory else b"")
        data = crowd.many(make(number), 400)
        while True:
            yield data

    return requests


def opens_full_directories(crowd: Crowd, number: int) -> Iterator[bytes]:
    yield crowd.hello + crowd.frame(m.ChangeDirectory(f"full{number}"))


def appends(crowd: Crowd, number: int) -> Iterator[bytes]:
    """Pipelined, 100 bytes each, to an object of its own."""
    yield crowd.hello + crowd.frame(
        m.ChangeDirectory(f"flood{number}", claim=True, epoch=1, writer_id=b"a" * 16)
    )
    for life in itertools.count():
        fold, payload = PrefixDigest(), bytes(100)
        for _ in range(20):
            part = []
            for _ in range(500):
                part.append(crowd.frame(m.Append(f"o{life % 1_000}", fold.size, fold.value, payload)))
                fold.update(payload)
            yield b"".join(part)


def removals(crowd: Crowd, number: int) -> Iterator[bytes]:
    """Every object of a full directory, as fast as it goes."""
    yield crowd.hello + crowd.frame(m.ChangeDirectory(f"full{number}"))
    for start in range(0, FULL_DIRECTORY, 200):
        yield b"".join(crowd.frame(m.Delete(f"o{one}")) for one in range(start, start + 200))


def waiting_gets(crowd: Crowd, number: int) -> Iterator[bytes]:
    del number
    yield crowd.hello + crowd.frame(m.ChangeDirectory("few"))
    yield crowd.many(m.Get("o0", 1, 1, 60_000), 1_024)


def never_read_gets(crowd: Crowd, number: int) -> Iterator[bytes]:
    del number
    yield crowd.hello + crowd.frame(m.ChangeDirectory("large"))
    yield crowd.many(m.Get("o0", 0, payload_bytes_max), 200)


def never_read_opens(crowd: Crowd, number: int) -> Iterator[bytes]:
    yield crowd.hello
    while True:
        yield crowd.many(m.ChangeDirectory(f"full{number % 2}"), 50)


def tiny_gets(crowd: Crowd, number: int) -> Iterator[bytes]:
    del number
    yield crowd.hello + crowd.frame(m.ChangeDirectory("tiny"))
    while True:
        yield crowd.many(m.Get("o", 0, payload_bytes_max), 16)


def hellos(crowd: Crowd, number: int) -> Iterator[bytes]:
    """A wrong token: each ends the connection, and the next one comes."""
    yield encode_frame(m.encode(m.Hello(token=b"wrong", client="attacker"), number + 1))


def version0(*bodies: bytes, directory: bytes = b"") -> Callable[[Crowd, int], Iterator[bytes]]:
    def requests(crowd: Crowd, number: int) -> Iterator[bytes]:
        del crowd, number
        if directory:
            yield framed0(b"u" + directory)
        data = b"".join(framed0(body) for body in bodies) * 400
        while True:
            yield data

    return requests


def framed0(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def version0_streams(crowd: Crowd, number: int) -> Iterator[bytes]:
    del crowd
    yield framed0(b"uv0") + framed0(b"as%d\t0" % number)
    while True:
        yield b"y" * 64


def version0_half(crowd: Crowd, number: int) -> Iterator[bytes]:
    del crowd, number
    yield b"\0\0\0\xc8l"


async def garbage(crowd: Crowd) -> None:
    count = max(1, int(400 * crowd.scale))
    await rubbish.garbage(crowd.address, connections=count, seed=1, until=trio.Event(), settled=trio.Event())


def pumps() -> dict[str, tuple[int, Pump]]:
    """By attack: how many connections, and what each does."""
    everything = m.List("", "", 6_000)
    return {
        "frames-begun": (300, begins_frames(hello=True)),
        "frames-begun-many": (1_000, begins_frames(hello=True)),
        "frames-half": (300, begins_frames(hello=True, sent_bytes=600_000)),
        "frames-unauthenticated": (300, begins_frames(hello=False)),
        "hello-wrong": (100, floods(hellos)),
        "ping": (50, floods(flood_of(lambda _: m.Ping(bytes(4_096))))),
        "list-directories": (20, floods(flood_of(lambda _: everything))),
        "list-objects": (20, floods(flood_of(lambda _: everything, "full0"))),
        "list-none": (50, floods(flood_of(lambda _: m.List("zz", "", 1)))),
        "cwd": (20, floods(flood_of(lambda _: m.ChangeDirectory("full0")))),
        "first-open": (20, floods(opens_full_directories)),
        "first-open-tiny": (1, floods(flood_of(lambda _: m.Stat("o"), "tiny"))),
        "stat": (50, floods(flood_of(lambda _: m.Stat("o0"), "few"))),
        "stat-digest": (20, floods(flood_of(lambda _: m.Stat("o", 70_000), "tiny"))),
        "get-tiny-extents": (8, floods(tiny_gets)),
        "get-waiting": (1_200, floods(waiting_gets)),
        "get-never-read": (400, floods(never_read_gets, reads=False)),
        "cwd-never-read": (400, floods(never_read_opens, reads=False)),
        "append-pipelined": (16, floods(appends)),
        "delete": (2, floods(removals)),
        "v0-list": (20, floods(version0(b"l", directory=b"full0"))),
        "v0-use": (20, floods(version0(b"ufull0"))),
        "v0-get": (20, floods(version0(b"go\t0\t0", directory=b"tiny"))),
        "v0-append-bytes": (50, floods(version0_streams)),
        "v0-begun": (300, floods(version0_half)),
    }


async def main() -> None:
    name, host, port, token, scale = sys.argv[1:]
    crowd = Crowd((host, int(port)), token.encode(), float(scale))
    async with trio.open_nursery() as nursery:
        if name == "garbage":
            nursery.start_soon(garbage, crowd)
        else:
            nursery.start_soon(crowd.run, *pumps()[name])
        while await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            pass
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
