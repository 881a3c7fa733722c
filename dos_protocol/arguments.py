"""Values as people write them, on a command line or in a small file: addresses, sizes, rates, times, tokens.

Pure: no name is resolved and no file is read. `dos_client.urls` handles the addresses of clients.
"""

import re
from ipaddress import ip_address
from typing import Final

from dos_protocol.errors import LocalProtocolError

PORT_MAX = 65_535


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return the host, without brackets, and the port of `--listen HOST:PORT`; port 0 selects a free one.
    Raises ValueError.
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
    """Return whether the host means every address of its own machine, as 0.0.0.0 and :: do."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """Return the address as a client writes it, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- Sizes, rates, times ------------------------------------------------------------------------------------


_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "tb": 10**12, "tib": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_SPANS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = r"(\d{1,9}(?:\.\d{1,3})?)"
_RATE: Final = re.compile(_NUMBER + r" ?([kmgt]?i?b?)(?:/s)?", re.IGNORECASE | re.ASCII)
_SPAN: Final = re.compile(_NUMBER + r" ?([smhd]?)", re.ASCII)


def parse_rate(text: str) -> int:
    """Return bytes per second for a text such as 8MB/s, 512KiB/s or 0. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(
            f"invalid rate {text[:40]!r}: use a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB,"
            " for example 8MB/s"
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_bytes(text: str) -> int:
    """Return the bytes for a text such as 10GB, 512MiB or 0. Raises ValueError."""
    if text.strip().endswith("/s"):
        raise ValueError(f"invalid size {text[:40]!r}: it is a rate")
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ValueError(str(error).replace("rate", "size").replace("8MB/s", "10GB")) from error


def parse_span(text: str) -> float:
    """Return seconds for a text such as 24h, 90m, 7d, 30s or 0.5. Raises ValueError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid time {text[:40]!r}: use a number and s, m, h or d, for example 24h")
    return float(match[1]) * _SPANS[match[2]]


# --- Tokens -------------------------------------------------------------------------------------------------


TOKEN_BYTES_MAX: Final = 4_096
_STRONG_BYTES_MIN: Final = 16
_DISTINCT_MIN: Final = 8


def token_in(data: bytes, where: str) -> bytes:
    """Return the first line of a token file, stripped. Raises LocalProtocolError if blank or too long."""
    token = data.split(b"\n", 1)[0].strip()
    if not token:
        seen = "an empty file" if not data else "a blank first line"
        raise LocalProtocolError(
            f"token file {where} contains no token, found {seen}",
            remedy="write the token into its first line, or omit the option to use none",
        )
    if len(token) > TOKEN_BYTES_MAX:
        raise LocalProtocolError(
            f"token file {where}: a token has at most {TOKEN_BYTES_MAX} bytes, its line has {len(token)}"
        )
    return token


def refuse_weak(secret: bytes, where: str) -> None:
    """Raise LocalProtocolError for a secret that can be guessed: the delay of wrong ones is no protection."""
    if len(secret) < _STRONG_BYTES_MIN or len(set(secret)) < _DISTINCT_MIN:
        raise LocalProtocolError(
            f"the secret in {where} can be guessed: it has {len(secret)} characters, {len(set(secret))} of"
            f" them distinct; at least {_STRONG_BYTES_MIN} and {_DISTINCT_MIN} are needed",
            remedy=f"make a random one: head --bytes 24 /dev/urandom | base64 > {where}",
        )
