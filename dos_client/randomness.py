"""Where a client's random numbers come from.

Rules of this file: the one place of `dos_client` that asks for them, so that a simulated client can be given
a stream of its own (`runtime`). Jitter spreads load and is no secret; an identity is never used twice, by
anybody.
"""

import random

from dos_client.runtime import runtime
from dos_protocol.limits import id_bytes


def stream() -> random.Random:
    """A stream, for what needs many."""
    return runtime().rng


def jitter() -> float:
    """From 0 to 1, for one pause."""
    return runtime().rng.random()


def fresh_id() -> bytes:
    """An identity that nobody else has: of a writer, of a store."""
    return runtime().fresh_id(id_bytes)
