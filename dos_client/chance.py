"""Where a client's random numbers come from.

Rules of this file: the one place of `dos_client` that asks for them, so that a simulated client can be given
a stream of its own (`world`). Jitter spreads load and is no secret; an identity is never used twice, by
anybody.
"""

import random

from dos_client.world import world
from dos_protocol.limits import id_bytes


def stream() -> random.Random:
    """A stream, for what needs many."""
    return world().chance


def jitter() -> float:
    """From 0 to 1, for one pause."""
    return world().chance.random()


def fresh_id() -> bytes:
    """An identity that nobody else has: of a writer, of a store."""
    return world().fresh_id(id_bytes)
