"""Addresses: parsing `--listen`, recognizing loopback and wildcards, formatting. Pure: no name is resolved.

`dos_client.urls` handles the addresses that a client connects to.
"""

from ipaddress import ip_address

PORT_MAX = 65_535


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return the host, without brackets, and the port of `--listen HOST:PORT`. Port 0 selects a free port.

    Raises ValueError with a message for the user.
    """
    host, colon, port = text.rpartition(":")
    host = bare_host(host)
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{option} takes HOST:PORT with a port from 0 to {PORT_MAX}, got {text!r}")
    return host, int(port)


def bare_host(host: str) -> str:
    """Return a host without the brackets that are written around IPv6."""
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host. False for any name other than localhost."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether the host means every address of its own machine, as 0.0.0.0 and :: do. A server can
    listen there; nobody can connect to it from elsewhere.
    """
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """Return the address as a client writes it, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
