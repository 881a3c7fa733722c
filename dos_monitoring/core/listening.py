"""Where the processes of a region serve their figures: a host, and ports to try. Pure."""

from typing import Final, NamedTuple

from dos_protocol.arguments import PORT_MAX, address_text, bare_host, is_wildcard

METRICS_VARIABLE: Final = "DOS_METRICS"
"""The environment variable that a driver reads if its program names no place."""


class MetricsListen(NamedTuple):
    """A host to listen on, and the ports to try in this order; 0 selects a free one."""

    host: str
    ports: tuple[int, ...]

    def reached_at(self, port: int, own_host: str) -> str:
        """Return the address for others. own_host: where they reach this process, if it listens on every
        address of its machine.
        """
        return address_text(own_host if is_wildcard(self.host) else self.host, port)


def parse_metrics_listen(text: str) -> MetricsListen | None:
    """Return what HOST:PORT or HOST:FIRST-LAST means; None for "". Port 0 selects a free port.

    Raises ValueError with a message for the user.
    """
    if not text:
        return None
    host, colon, numbers = text.rpartition(":")
    first, dash, last = numbers.partition("-")
    ports = (first, last if dash else first)
    host = bare_host(host)
    usable = bool(colon and host) and all(one.isascii() and one.isdigit() for one in ports)
    if usable and 0 <= int(ports[0]) <= int(ports[1]) <= PORT_MAX and (int(ports[0]) or not dash):
        return MetricsListen(host, tuple(range(int(ports[0]), int(ports[1]) + 1)))
    raise ValueError(
        f"metrics take HOST:PORT or HOST:FIRST-LAST with ports up to {PORT_MAX}, or port 0, got {text!r}"
    )
