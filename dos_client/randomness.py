"""The client's random numbers.

All random numbers of `dos_client` come from here, so that a simulated client can use a seeded generator
(`runtime`). Jitter is not secret. An identity must never repeat.
"""

import random

from dos_client.runtime import runtime
from dos_protocol.limits import id_bytes


def stream() -> random.Random:
    """Return a random generator, for callers that need many numbers."""
    return runtime().rng


def jitter() -> float:
    """Return a number from 0 to 1, for one pause."""
    return runtime().rng.random()


def fresh_id() -> bytes:
    """Return a new unique identity for a writer or a store."""
    return runtime().fresh_id(id_bytes)
