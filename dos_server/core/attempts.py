"""Wrong tokens: a host that sends several is answered later and later, and logged seldom. Pure.

Tokens are too long to be guessed. The delay keeps a program that tries, or that is configured wrongly and
connects again and again, from using up the server and its log. Right tokens are never delayed, so such a
program does not lock out others on its host.
"""

from typing import Final, NamedTuple

_FREE: Final = 3
"""So many wrong tokens are answered at once."""
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
"""Shorter than the time that a client may take for its HELLO, and than what clients wait for an answer: they
shall know the reason."""
_FORGOTTEN_S: Final = 60.0
_HOSTS_MAX: Final = 1_024
_SELDOM_S: Final = 60.0
_HELD_MAX: Final = 64
"""Sessions that wait for their refusal. Further ones are refused at once, so that they hold no connection."""


class HeldRefusal(NamedTuple):
    """A refusal to send at a time. session: its number."""

    at_s: float
    session: int
    request_id: int


class Attempts:
    """The wrong tokens of each host in the last minute, and the refusals that wait."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[int, float]] = {}
        """Host -> how many, and when the last one was."""
        self._held: list[HeldRefusal] = []

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def failed(self, host: str, now_s: float) -> float | None:
        """Note a wrong token. Return when it is to be refused; None: at once."""
        before, at_s = self._failed.pop(host, (0, now_s))
        count = 1 if now_s - at_s > _FORGOTTEN_S else before + 1
        self._failed[host] = count, now_s
        if len(self._failed) > _HOSTS_MAX:
            del self._failed[next(iter(self._failed))]  # the one that failed longest ago
        if count <= _FREE or len(self._held) >= _HELD_MAX:
            return None
        return now_s + min(_FIRST_S * 2.0 ** min(count - _FREE - 1, 10), _LONGEST_S)

    def hold(self, refusal: HeldRefusal) -> None:
        self._held.append(refusal)

    def due(self, now_s: float) -> list[HeldRefusal]:
        """Return, and forget, the refusals whose time has come."""
        due = [one for one in self._held if one.at_s <= now_s]
        self._held = [one for one in self._held if one.at_s > now_s]
        return due


class Seldom:
    """What is to be logged at most once a minute: a client that is refused asks again and again."""

    def __init__(self) -> None:
        self._at_s: dict[tuple[str, str], float] = {}

    def is_due(self, what: tuple[str, str], now_s: float) -> bool:
        """Return whether to log it now."""
        if now_s - self._at_s.get(what, -_SELDOM_S) < _SELDOM_S:
            return False
        self._at_s.pop(what, None)
        self._at_s[what] = now_s
        if len(self._at_s) > _HOSTS_MAX:
            del self._at_s[next(iter(self._at_s))]  # what was logged longest ago
        return True
