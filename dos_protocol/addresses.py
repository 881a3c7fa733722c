"""Addresses that a program of ours listens on: what `--listen` takes, who reaches one, how one is written.

Rules of this file: texts, and no name is resolved. What a client dials is in `dos_client.urls`.
"""

from ipaddress import ip_address

PORT_MAX = 65_535


def parse_listen(text: str) -> tuple[str, int]:
    """Host, without brackets, and port of `--listen HOST:PORT`; port 0 stands for a free one.

    Raises ValueError, with what to say to the user.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"--listen takes HOST:PORT with a port from 0 to {PORT_MAX}, not {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may be anybody's."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """As a client writes it: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
