"""Where a client's random numbers come from.

Rules of this file: the one place of `dos_client` that asks for them, so that a simulated client can be given
a stream of its own. Jitter spreads load and is no secret; an identity is never used twice, by anybody.
"""

import random
import secrets

from dos_protocol.limits import id_bytes


def stream() -> random.Random:
    """A stream of its own, for what needs many."""
    return random.Random()  # noqa: S311 - spreads load, no secret


_jitter = stream()


def jitter() -> float:
    """From 0 to 1, for one pause."""
    return _jitter.random()


def fresh_id() -> bytes:
    """An identity that nobody else has: of a writer, of a store."""
    return secrets.token_bytes(id_bytes)
