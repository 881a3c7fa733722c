"""Planted growth: each bug lets something remain that should be deleted or forgotten.

Each names the beginning of a figure that must be reported as growing. The bugs of one list are independent of
each other, so one run with all of them must find them all.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest import mock

from checkpoint.chains.input_log import InputLog
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.steps_log import StepsLog
from checkpoint.core.verbs import RequestHandler
from checkpoint.requests import queue
from dataflow.worker.journals import FloorCollector
from dos_server.core.requests.removals import Removals
from dos_server.storage import OpenFiles
from journal import whole_state
from tests.sim.soak.region import SoakDriver
from tests.sim.store.member import Link

Planted = Callable[[], Any]


class Growth(NamedTuple):
    """A bug. `figure`: the beginning of the name of a figure that grows."""

    what: str
    figure: str
    plant: Planted


async def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _segments_stay() -> Any:
    return mock.patch.object(FloorCollector, "release", return_value=None)


def _requests_stay() -> Any:
    return mock.patch.object(queue, "_delete_old", _nothing)


def _register_stays() -> Any:
    return mock.patch.object(whole_state, "below", return_value=lambda _: False)


def _input_stays() -> Any:
    return mock.patch.object(InputLog, "trim", _nothing)


def _output_stays() -> Any:
    return mock.patch.object(OutputLog, "trim", _nothing)


def _manifest_is_one_segment() -> Any:
    made = SoakDriver.__init__

    def make(self: SoakDriver, *arguments: Any) -> None:
        made(self, *arguments)
        endless = replace(
            self.manifest._rolling,
            segments_max=1 << 30,
            manifest_segment_bytes_max=1 << 60,
            manifest_replay_bytes_max=1 << 60,
        )
        self.manifest._rolling = endless

    return mock.patch.object(SoakDriver, "__init__", make)


STORED: Final = (
    Growth("state segments are never deleted", "disk files: d/region.w0000", _segments_stay),
    Growth("requests are never deleted", "disk bytes: d/region.requests", _requests_stay),
    Growth("older states of the register are never deleted", "disk bytes: d/region.rd.rows", _register_stays),
    Growth("the input is never trimmed", "disk bytes: d/region.in.rows.till", _input_stays),
    Growth("the output log is never trimmed", "disk bytes: d/region.w0000", _output_stays),
    Growth("the manifest is never rolled", "disk bytes: d/region.coord", _manifest_is_one_segment),
)
"""Found in a run with restarts."""


def _server_remembers_removals() -> Any:
    remove = Removals.removed

    def removed(self: Any, event: Any) -> Any:
        self._tables.__dict__.setdefault("planted", {})[event.directory, event.name] = event.session
        return remove(self, event)

    return mock.patch.object(Removals, "removed", removed)


def _divisions_stay() -> Any:
    return mock.patch.object(StepsLog, "forget", _nothing)


def _requests_stay_open() -> Any:
    return mock.patch.object(RequestHandler, "_region_notified", return_value=None)


def _removed_files_stay_open() -> Any:
    return mock.patch.object(OpenFiles, "forget", return_value=None)


def _claim_remembers_deletions() -> Any:
    return mock.patch.object(Link, "_gone", lambda self, name: self.held.gone(name))


IN_MEMORY: Final = (
    Growth(
        "the server's core keeps an entry for each removed object",
        "memory of server: Tables.planted",
        _server_remembers_removals,
    ),
    Growth("input divisions are never forgotten", "memory of worker: Division", _divisions_stay),
    Growth("answered requests stay open", "memory of driver: RequestHandler._open", _requests_stay_open),
    Growth("files of removed objects stay open", "open files: server", _removed_files_stay_open),
    Growth(
        "a claim remembers the objects that it deleted",
        "memory of worker: Link._dropped",
        _claim_remembers_deletions,
    ),
)
"""Found in a calm run."""


@contextmanager
def all_planted(bugs: Iterable[Growth]) -> Iterator[None]:
    """Plant all of them."""
    with ExitStack() as stack:
        for bug in bugs:
            stack.enter_context(bug.plant())
        yield
