"""Rates and spans of time as people write them on a command line, and back.

Rules of this file: text and numbers.
"""

import re
from typing import Final

_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_SPANS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = r"(\d{1,9}(?:\.\d{1,3})?)"
_RATE: Final = re.compile(_NUMBER + r" ?([kmg]?i?b?)(?:/s)?", re.IGNORECASE | re.ASCII)
_SPAN: Final = re.compile(_NUMBER + r" ?([smhd]?)", re.ASCII)


def parse_rate(text: str) -> int:
    """Bytes a second: 8MB/s, 512KiB/s, 0. Raises ValueError, which says what is taken."""
    match = _RATE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(
            f"a rate is a number and B, kB, MB, GB, KiB, MiB or GiB, as 8MB/s; not {text[:40]!r}"
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_span(text: str) -> float:
    """Seconds: 24h, 90m, 7d, 30s, 0.5. Raises ValueError, which says what is taken."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a time is a number and s, m, h or d, as 24h; not {text[:40]!r}")
    return float(match[1]) * _SPANS[match[2]]
