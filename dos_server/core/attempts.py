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


class HeldRefusal(NamedTuple):
    """A refusal to send at a time. session: its number."""

    at_s: float
    session: int
    request_id: int


class Attempts:
    """The wrong tokens of each host in the last minute, and the refusals that wait: of each connection one at
    most. A connection that waits has not greeted, so it gives way to a new one when there are too many.
    """

    def __init__(self) -> None:
        self._failed: dict[str, tuple[int, float]] = {}
        """Host -> how many, and when the last one was."""
        self._held: dict[int, HeldRefusal] = {}
        """By the number of the session."""

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
        if count <= _FREE:
            return None
        return now_s + min(_FIRST_S * 2.0 ** min(count - _FREE - 1, 10), _LONGEST_S)

    def hold(self, refusal: HeldRefusal) -> None:
        self._held[refusal.session] = refusal

    def ended(self, session: int) -> None:
        """Forget the refusal of a session that has ended."""
        self._held.pop(session, None)

    def due(self, now_s: float) -> list[HeldRefusal]:
        """Return, and forget, the refusals whose time has come."""
        due = [one for one in self._held.values() if one.at_s <= now_s]
        for one in due:
            del self._held[one.session]
        return due


class Seldom:
    """What is to be logged at most once a minute: a client that is refused asks again and again. The next
    line counts what was left out.
    """

    def __init__(self) -> None:
        self._at_s: dict[tuple[str, str], float] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def line(self, host: str, text: str, now_s: float) -> str:
        """Return the line to log now, "" for none."""
        what = host, text
        if now_s - self._at_s.get(what, -_SELDOM_S) < _SELDOM_S:
            self._left_out[what] = self._left_out.get(what, 0) + 1
            return ""
        self._at_s.pop(what, None)
        self._at_s[what] = now_s
        count = self._left_out.pop(what, 0)
        if len(self._at_s) > _HOSTS_MAX:
            oldest = next(iter(self._at_s))  # what was logged longest ago
            del self._at_s[oldest]
            self._left_out.pop(oldest, None)
        return f"{text} ({count} times more since the last such line)" if count else text
