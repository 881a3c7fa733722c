"""Connections that send garbage, seeded: many at once, of every kind, made again when the server ends them.

Kinds are generators of steps: bytes to send, or a pause in seconds, or HOLD: keep the connection open and
send nothing more. Answers of the server are read and dropped, or not read.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import trio

from dos_protocol import messages as m
from dos_protocol.frames import Frame, encode_frame, frame_head
from dos_protocol.limits import payload_bytes_max

HOLD = -1.0
Steps = Iterator[bytes | float]


def hello(number: int = 1) -> bytes:
    return encode_frame(m.encode(m.Hello(client="garbage"), number))


def random_bytes(rng: random.Random) -> Steps:
    for _ in range(rng.randrange(1, 5)):
        yield rng.randbytes(rng.randrange(1, 20_000))


def header_and_garbage(rng: random.Random) -> Steps:
    yield hello()
    yield encode_frame(Frame(rng.randrange(256), rng.getrandbits(64), b""))[:24] + rng.randbytes(3_000)
    yield HOLD


def half_a_frame(rng: random.Random) -> Steps:
    """All but its last bytes, and then nothing: as much as a frame may have."""
    if rng.random() < 0.8:
        yield hello()
    frame = encode_frame(Frame(3, 7, bytes(16) + b"\1o", rng.randbytes(payload_bytes_max)))
    yield frame[: len(frame) - rng.randrange(1, 200)]
    yield HOLD


def a_promise_of_much(rng: random.Random) -> Steps:
    """A header that announces the most that is allowed, behind a good frame; then nothing."""
    yield hello() + frame_head(Frame(3, 7, bytes(65_536), bytes(payload_bytes_max)))[:32]
    yield HOLD


def a_lie_about_length(rng: random.Random) -> Steps:
    head = bytearray(frame_head(Frame(3, 7, b"", b"")))
    head[16:24] = rng.randbytes(8)
    yield hello() + bytes(head) + rng.randbytes(2_000)


def a_bad_digest(rng: random.Random) -> Steps:
    frame = bytearray(encode_frame(Frame(3, 7, bytes(16) + b"\1o", rng.randbytes(rng.randrange(70_000)))))
    frame[rng.randrange(24, len(frame))] ^= 1 << rng.randrange(8)
    yield hello() + bytes(frame)


def whole_frames_of_nonsense(rng: random.Random) -> Steps:
    yield hello()
    for number in range(200):
        yield encode_frame(Frame(rng.randrange(256), number, rng.randbytes(rng.randrange(60)), b""))
        yield 0.01


def version0_nonsense(rng: random.Random) -> Steps:
    for _ in range(100):
        body = rng.choice([b"u", b"a", b"l", b"g", b"d", b"s", b"?"]) + rng.randbytes(rng.randrange(40))
        yield len(body).to_bytes(4, "big") + body
        yield 0.01


def version0_half_a_request(rng: random.Random) -> Steps:
    yield b"\0\0\0\2l"
    yield HOLD


def tls(rng: random.Random) -> Steps:
    yield b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + rng.randbytes(16_384)
    yield HOLD


def http(rng: random.Random) -> Steps:
    yield b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUser-Agent: probe\r\n\r\n"
    yield HOLD


def slow_single_bytes(rng: random.Random) -> Steps:
    for byte in hello() * 3 + rng.randbytes(200):
        yield bytes((byte,))
        yield 0.25


def silence(rng: random.Random) -> Steps:
    yield HOLD


def questions_without_reading(rng: random.Random) -> Steps:
    """As many as the sockets take, and never an answer read."""
    yield hello() + encode_frame(m.encode(m.ChangeDirectory("good"), 2))
    for number in range(2_000):
        yield encode_frame(m.encode(m.Get("large", 0, payload_bytes_max), number))
    yield HOLD


def pings_without_reading(rng: random.Random) -> Steps:
    yield hello()
    for number in range(2_000):
        yield encode_frame(m.encode(m.Ping(bytes(4_096)), number))
    yield HOLD


KINDS: list[Callable[[random.Random], Steps]] = [
    random_bytes, header_and_garbage, half_a_frame, a_promise_of_much, a_lie_about_length, a_bad_digest,
    whole_frames_of_nonsense, version0_nonsense, version0_half_a_request, tls, http, slow_single_bytes,
    silence, questions_without_reading, pings_without_reading,
]  # fmt: skip
DEAF = {questions_without_reading, pings_without_reading}


async def garbage(
    address: tuple[str, int], *, connections: int, seed: int, until: trio.Event, settled: trio.Event
) -> Counter[str]:
    """Keep so many connections at it until the event. `settled`: each has been made at least once.

    Returns how many of each kind there were.
    """
    made: Counter[str] = Counter()
    begun: set[int] = set()

    async def one(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while True:
            kind = (
                KINDS[(number + made.total()) % len(KINDS)] if number in begun else KINDS[number % len(KINDS)]
            )
            made[kind.__name__] += 1
            try:
                async with await trio.open_tcp_stream(*address) as stream:
                    begun.add(number)
                    if len(begun) == connections:
                        settled.set()
                    await _misbehave(stream, kind, rng)
            except OSError:
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for number in range(connections):
            nursery.start_soon(one, number)
        await until.wait()
        nursery.cancel_scope.cancel()
    return made


async def _misbehave(
    stream: trio.SocketStream, kind: Callable[[random.Random], Steps], rng: random.Random
) -> None:
    """Do the steps; end when the server ends the connection."""
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            try:
                while await stream.receive_some(65_536):
                    pass
            except trio.BrokenResourceError:
                pass
            nursery.cancel_scope.cancel()

        if kind not in DEAF:
            nursery.start_soon(listen)
        try:
            for step in kind(rng):
                if isinstance(step, bytes):
                    await stream.send_all(step)
                elif step == HOLD:
                    await trio.sleep_forever()
                else:
                    await trio.sleep(step)
        except trio.BrokenResourceError:
            await trio.sleep(0.05)  # ended by the server: as a client that tries again would
        nursery.cancel_scope.cancel()
