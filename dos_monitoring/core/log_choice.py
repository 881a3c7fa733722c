"""How a process writes its log: as text or as JSON, and from which level on. Pure."""

from typing import Final, NamedTuple

LOG_VARIABLE: Final = "DOS_LOG"
"""The environment variable of drivers, workers and commands: `json`, `text`, each with `:LEVEL` if wanted."""
_FORMATS: Final = ("json", "text")
_LEVELS: Final = ("debug", "info", "warning", "error")


class LogChoice(NamedTuple):
    """The format of a log, and its lowest level: a name of the logging module."""

    as_json: bool = False
    level: str = "WARNING"


def parse_log_choice(text: str) -> LogChoice | None:
    """Return what FORMAT or FORMAT:LEVEL means, such as json:info; None for "".

    Raises ValueError with a message for the user.
    """
    if not text:
        return None
    form, colon, level = text.partition(":")
    if form not in _FORMATS or (level or (not colon and "warning")) not in _LEVELS:
        raise ValueError(
            f"{LOG_VARIABLE} is {' or '.join(_FORMATS)}, with :{', :'.join(_LEVELS)} for the lowest level,"
            f" got {text!r}"
        )
    return LogChoice(form == "json", (level or "warning").upper())
