"""The stories of `sink_check`: what is done to a sink, as sequences of acts."""

import random
from collections.abc import Mapping
from typing import Final

_AT: Final = "prepare sync commit"
_DONE: Final = f"rows {_AT} publish"
STORIES: Final[Mapping[str, str]] = {
    "no failure": f"{_DONE} rows {_DONE}",
    "a checkpoint without rows": f"{_AT} publish {_DONE} {_AT} publish",
    "a crash before the first checkpoint": "rows crash rows",
    "a crash in the middle of rows": f"{_DONE} rows crash rows",
    "a crash between prepare and sync": f"{_DONE} rows prepare crash rows",
    "a crash between prepare and commit": f"{_DONE} rows prepare sync crash rows",
    "the number of a checkpoint comes again": f"rows prepare sync crash {_DONE} rows",
    "a crash between commit and publish": f"rows {_AT} crash rows",
    "a crash after one worker has published": f"rows {_AT} publish-one crash rows",
    "a crash after publish": f"{_DONE} crash rows",
    "publish is called twice": f"{_DONE} publish rows publish",
    "the next checkpoint is prepared before publish": f"rows {_AT} rows prepare sync publish commit publish",
    "two checkpoints are committed before publish": f"rows {_AT} rows {_AT} publish",
    "a crash after two checkpoints that were not published": f"rows {_AT} rows {_AT} crash rows",
    "publish arrives after the next prepare": f"rows {_AT} rows prepare publish sync commit crash rows",
    "two crashes during the reset": f"rows {_AT} rows half half crash rows crash rows",
    "a superseded worker continues": f"rows {_AT} rows prepare kill rows zombies prepare sync zombies",
    "a superseded worker publishes late": f"rows {_AT} kill rows zombies {_DONE}",
    "a superseded worker opens late": f"{_DONE} crash rows stale prepare sync stale commit",
}
"""What is done to a sink, as acts. Each ends with rows, a checkpoint and its publication."""
ZOMBIES: Final = ("kill", "zombies", "stale")
"""Acts of workers of superseded incarnations."""

_acts_max: Final = 40


def random_acts(rng: random.Random) -> list[str]:
    """Return a story that `rng` makes up."""
    often = (
        "rows",
        "rows",
        "prepare",
        "sync",
        "commit",
        "publish",
        "publish-one",
        "crash",
        "half",
        *ZOMBIES,
    )
    return [rng.choice(often) for _ in range(rng.randrange(10, _acts_max))]


__all__ = ["STORIES", "ZOMBIES", "random_acts"]
