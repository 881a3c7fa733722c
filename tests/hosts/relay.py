"""A slow and lossy cable: two TAP devices, and this process between them.

python -m tests.hosts.relay DEVICE DEVICE DELAY_S LOSS

Creates both devices in its network namespace, prints a line, and passes each Ethernet frame that one of them
sends to the other, DELAY_S seconds later; a fraction LOSS of them is lost. A line "DELAY_S LOSS" on standard
input changes both. The devices vanish with the process. The kernel has a queue that does this (netem), but
not every kernel is built with it.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65_536
WAITING_FRAMES_MAX = 20_000
"""More are lost, as in a router whose queue is full."""


def open_tap(name: str) -> int:
    """Create a TAP device; return its descriptor, from which the frames that the device sends are read."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def relay(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Pass frames between two devices until standard input is closed."""
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        for end, other in (ends, ends[::-1]):
            selector.register(end, selectors.EVENT_READ, other)
        while True:
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in selector.select(timeout):
                if key.fileobj is sys.stdin:
                    if not (line := sys.stdin.readline()):
                        return
                    delay_s, loss = map(float, line.split())
                    continue
                try:
                    frame = os.read(key.fd, FRAME_BYTES_MAX)
                except OSError:
                    return  # the host has ended, and the device with it
                count += 1
                if random.random() >= loss and len(waiting) < WAITING_FRAMES_MAX:
                    heapq.heappush(waiting, (time.monotonic() + delay_s, count, key.data, frame))
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, target, frame = heapq.heappop(waiting)
                try:
                    os.write(target, frame)
                except OSError:
                    continue  # the device is down, or its queue is full: the frame is lost


def main() -> None:
    one, other, delay_s, loss = sys.argv[1:]
    ends = open_tap(one), open_tap(other)
    print("ready", flush=True)
    relay(ends, float(delay_s), float(loss))


if __name__ == "__main__":
    main()
