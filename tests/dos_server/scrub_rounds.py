"""Rounds of the scrub, driven event by event."""

from dos_server.core import vocabulary as v
from dos_server.core.object_state import ObjectState
from tests.support.core_harness import Harness


def rounds_of(server: Harness) -> int:
    return sum("rounds since the start" in line for line in server.told)


def one_round(server: Harness) -> list[str]:
    """Until a round is over; what was looked at, as DIRECTORY/OBJECT, a part at a time."""
    before, seen = rounds_of(server), []
    while rounds_of(server) == before:
        server.scrub_on()
        seen += [f"{e.directory}/{e.name}" for e, _ in server.pending if isinstance(e, v.ScrubRead)][:1]
        server.settle()
    return seen


def state_of(server: Harness, directory: str, name: str) -> ObjectState:
    state = server.core._tables.find(directory, name)
    assert state is not None
    return state
