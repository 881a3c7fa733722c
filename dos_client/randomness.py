"""The client's random numbers, and the pauses before a retry. All come from `runtime`, so that a simulated
client can use a seeded generator. An identity must never repeat.
"""

import random

from dos_client.limits import backoff_first_s, backoff_max_s
from dos_client.runtime import runtime
from dos_protocol.limits import id_bytes


def stream() -> random.Random:
    return runtime().rng


def jitter() -> float:
    return runtime().rng.random()


def fresh_id() -> bytes:
    return runtime().fresh_id(id_bytes)


def backoff_s(attempt: int, rng: float) -> float:
    """Return the seconds to wait after `attempt` failures in a row (1, 2, ...): it doubles up to a
    maximum.
    """
    # Jitter covers the upper half: clients that lost one server at the same moment must not all come back at
    # once.
    ceiling = min(backoff_max_s, backoff_first_s * 2.0 ** min(attempt - 1, 16))
    return ceiling * (0.5 + 0.5 * rng)
