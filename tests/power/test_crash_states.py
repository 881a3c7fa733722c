"""Hundreds of disks that a power cut may leave, from runs of a real server: record once, crash anywhere.

Whatever a client had been told by the moment of the crash must be there, and nothing that was not written.
"""

import random
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.power import operations as op
from tests.power.crash_states import (
    Recorded,
    data_of,
    observed_on,
    plain_folder,
    record,
    states,
    syncing_nothing,
    violations,
)
from tests.power.disk_state import SECTOR, DiskState
from tests.support.servers import NO_LOG

pytestmark = pytest.mark.process


GROUP_LOG = ("--group-log", "1")
each_way = pytest.mark.parametrize("options", [NO_LOG, GROUP_LOG], ids=["each-object-synced", "group-log"])


@each_way
def test_after_a_power_cut_at_any_moment_all_that_was_acknowledged_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[str, ...]
) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    run = record(tmp_path / "disk", 1, options=options)
    assert run.history.acknowledged_bytes > 300_000
    with caplog.at_level("WARNING", "dos.server"):
        assert not violations(run, 240 if options == NO_LOG else 160, 1)
    found = Counter(re.findall(r"\(case (\w)\)", caplog.text))
    assert options == GROUP_LOG or {"B", "C"} <= found.keys(), f"the states are too tame: {found}"


@each_way
def test_after_a_power_cut_in_the_start_after_a_kill_or_a_power_cut_it_is_too(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    run = record(tmp_path / "disk", 2, options=options)
    assert not violations(run, 140 if options == NO_LOG else 100, 2, again=True)


@pytest.mark.parametrize(
    ("files", "folders", "options"),
    [(True, False, NO_LOG), (False, True, NO_LOG), (True, True, NO_LOG), (True, False, GROUP_LOG)],
)
def test_the_same_states_of_a_disk_that_lies_show_what_is_lost(
    tmp_path: Path, options: tuple[str, ...], *, files: bool, folders: bool
) -> None:
    """The mutant: were nothing synced, this would be seen."""
    run = record(tmp_path / "disk", 3, steps=30, options=options)
    assert not violations(run, 20, 3)
    run.operations = syncing_nothing(run.operations, files=files, folders=folders)
    assert violations(run, 20, 3)


def test_marks_that_are_torn_anywhere_take_nothing_back(tmp_path: Path) -> None:
    """They are overwritten in place and not synced. A mark never crosses a sector, and here even sectors are
    torn: up to any byte the marks are the newest, from there the ones that were synced, zeros or rubbish."""
    # EVIDENCE-OF: P-1
    run, rng, tried = record(tmp_path / "disk", 4), random.Random(4), 0
    with plain_folder() as folder:
        for state in states(run.operations, run.moments(rng, 40)):
            image, synced = data_of(state.seen()), data_of(state.bare())
            for path in [path for path in image if path.endswith("/.marks")]:
                new, old = image[path] or b"", synced.get(path) or b""
                edge = rng.randrange(len(new) + 1)
                rest = rng.choice((old[edge:], bytes(len(new) - edge), rng.randbytes(len(new) - edge)))
                image[path] = new[:edge] + rest
                tried += 1
            wrong = run.history.violations(observed_on(image, folder), run.before(state.count))
            assert not wrong, (state.count, wrong)
    assert tried > 40


def test_a_tail_that_lacks_any_one_sector_or_ends_at_any_is_cut_back_to_whole_extents(tmp_path: Path) -> None:
    """At the moment with most bytes of one object under way."""
    # EVIDENCE-OF: P-1, P-2
    run, tried = record(tmp_path / "disk", 5), 0
    most = most_under_way(run)
    (state,) = states(run.operations, [most.count])
    image, path, seen = data_of(state.bare()), most.path, most.seen
    stable = len(image[path] or b"")
    with plain_folder() as folder:
        for edge in range(stable - stable % SECTOR, len(seen), SECTOR):
            start, end = max(edge, stable), min(edge + SECTOR, len(seen))
            for tail in (seen[:start] + bytes(end - start) + seen[end:], seen[:start]):
                tried += 1
                wrong = run.history.violations(
                    observed_on({**image, path: tail}, folder), run.before(most.count)
                )
                assert not wrong, (most.count, path, edge, len(tail), wrong)
    assert tried >= 20


class UnderWay(NamedTuple):
    """An object while some of it was not synced: after how many operations, and what was seen of it."""

    count: int
    path: str
    seen: bytes


def most_under_way(run: Recorded) -> UnderWay:
    """The moment when most bytes of an object were written and not synced."""
    best, most = UnderWay(0, "", b""), 0
    for state in states(run.operations, range(1, len(run.operations))):
        operation = run.operations[state.count - 1]
        if isinstance(operation, op.Write):
            file = state.files[operation.node]
            if len(file.seen) - file.stable_size > most and (path := object_path(state, operation.node)):
                best, most = UnderWay(state.count, path, bytes(file.seen)), len(file.seen) - file.stable_size
    return best


def object_path(state: DiskState, node: int) -> str:
    """Where an object's file is in the data directory, if its name is durable; else nothing."""
    (data,) = (folder for folder in state.folders.values() if "d" in folder.stable)
    for directory, folder in state.folders[data.stable["d"]].stable.items():
        for name, one in state.folders[folder].stable.items():
            if one == node and not name.startswith("."):
                return f"d/{directory}/{name}"
    return ""
