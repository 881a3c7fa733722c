"""How long to wait before a retry. Pure: `rng` is a random number from 0 to 1."""

from dos_client.limits import backoff_first_s, backoff_max_s


def backoff_s(attempt: int, rng: float) -> float:
    """Return the seconds to wait after `attempt` failures in a row (1, 2, ...).

    The delay doubles up to a maximum. Jitter covers its upper half, so that clients that lost one server at
    the same moment do not reconnect at the same moment, and none reconnects immediately.
    """
    ceiling = min(backoff_max_s, backoff_first_s * 2.0 ** min(attempt - 1, 16))
    return ceiling * (0.5 + 0.5 * rng)
