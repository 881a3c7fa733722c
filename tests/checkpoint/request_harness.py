"""One RequestHandler, with the test in the role of the store, the region and the clock."""

from dataclasses import replace

from checkpoint.core.region import RegionState, RegionStatus
from checkpoint.core.requests import Request
from checkpoint.core.verbs import CommandRegion, RequestArrived, RequestHandler, WriteAnswer

RUNNING = RegionStatus(RegionState.RUNNING, "", 3, 5, 7, 5, 0, (), ())


WALL = 1_700_000_000_000


def a_request(number=1, what="status", **fields):
    return Request(
        **{
            "id": f"{number:032x}",
            "region": "words",
            "what": what,
            "wall_time_ms": WALL,
            "patience_ms": 10_000,
            **fields,
        }
    )


def in_state(state):
    return replace(RUNNING, state=state)


class HandlerHarness:
    """A request queue, a clock that the test sets, and the results."""

    def __init__(self):
        self.handler, self.now, self.status, self.effects = RequestHandler("words"), 100.0, RUNNING, []

    def handle(self, event, at=None):
        self.now = self.now if at is None else at
        effects = self.handler.handle(event, self.status, self.now)
        self.effects += effects
        return effects

    def request(self, *arguments, wall=WALL, **fields):
        return self.handle(RequestArrived(a_request(*arguments, **fields), wall))

    def commands(self):
        return [one.event for one in self.effects if isinstance(one, CommandRegion)]

    def answers(self, number):
        return [
            (one.verdict, one.reason)
            for one in self.effects
            if isinstance(one, WriteAnswer) and f"{number:032x}" in one.requests
        ]
