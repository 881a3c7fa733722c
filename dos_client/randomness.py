"""The client's random numbers, and the pauses before a retry.

All random numbers of `dos_client` come from here, so that a simulated client can use a seeded generator
(`runtime`). Jitter is not secret. An identity must never repeat.
"""

import random

from dos_client.limits import backoff_first_s, backoff_max_s
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


def backoff_s(attempt: int, rng: float) -> float:
    """Return the seconds to wait after `attempt` failures in a row (1, 2, ...).

    The delay doubles up to a maximum. Jitter covers its upper half, so that clients that lost one server at
    the same moment do not reconnect at the same moment, and none reconnects immediately.
    """
    ceiling = min(backoff_max_s, backoff_first_s * 2.0 ** min(attempt - 1, 16))
    return ceiling * (0.5 + 0.5 * rng)
