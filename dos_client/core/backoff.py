"""How long to wait before trying again. Pure: the chance comes in as a number from 0 to 1."""

from dos_client.limits import backoff_first_s, backoff_max_s


def backoff_s(attempt: int, rng: float) -> float:
    """Seconds before the attempt after `attempt` failures in a row (1, 2, ...).

    Doubling up to a maximum, with jitter over the upper half: many clients that lost one server at one
    moment do not come back at one moment, and none comes back at once."""
    ceiling = min(backoff_max_s, backoff_first_s * 2.0 ** min(attempt - 1, 16))
    return ceiling * (0.5 + 0.5 * rng)
