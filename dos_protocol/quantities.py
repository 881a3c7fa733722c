"""Numbers of bytes, rates and time spans as written on a command line. Pure: text to numbers."""

import re
from typing import Final

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
