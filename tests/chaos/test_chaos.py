"""A short run with a fixed seed, and the checker on its evidence, with violations planted in it.

The long runs are by hand: `./run python -m tests.chaos --help`, figures in docs/robustness.md.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dos_chaos.core.checker import VIOLATIONS
from tests.chaos.disks import object_path, read_object
from tests.chaos.evidence import Evidence, judge
from tests.chaos.faults import LANES
from tests.chaos.show import command_line
from tests.chaos.story import Options, run
from tests.support.second_chance import SLOW

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
OPTIONS = Options(seed=122, seconds=6.0, acknowledged=2_000, directories=2, window=20)
DIRECTORY = "app.w0000"


def test_nothing_acknowledged_is_lost_and_the_checker_would_have_seen_it(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    """One test, because the run takes long and the other checks use its evidence."""
    # EVIDENCE-OF: P-1, P-2, P-4, P-5, P-10
    report = trio.run(run, OPTIONS, tmp_path / "run")
    if report.only_late:  # a time limit was missed, nothing was lost: a busy machine may do so, not twice
        record_property(SLOW, "; ".join(report.late))
        report = trio.run(run, OPTIONS, tmp_path / "again")
    wrong = "; ".join([*report.errors, *report.late, *report.verdict.examples])
    text = f"{wrong}\n{report.as_json()}\nagain: {command_line(OPTIONS)}"
    assert report.good, text
    assert report.verdict.acknowledged >= OPTIONS.acknowledged, text
    assert report.verdict.copies >= 3 * OPTIONS.directories, text
    assert report.verdict.committed_reads >= OPTIONS.directories, text
    kinds = {fault.__name__: lane for lane, (_, faults) in LANES.items() for fault in faults}
    assert {kinds[name] for name in report.faults} == set(LANES), f"a lane did nothing: {text}"
    assert report.evidence is not None
    disks_are_read_as_servers_serve_them(report.evidence)
    for directory, found in report.evidence.found.items():  # as a reader may have read at any moment
        report.evidence.returned[directory] += [span.end for span in found.state.segments]
    assert judge(copied(report.evidence)).good
    for plant, expected in PLANTED.items():
        folder = tmp_path / plant.__name__
        folder.mkdir()
        evidence = copied(report.evidence)
        plant(evidence, folder)
        verdict = judge(evidence)
        found = {name for name in VIOLATIONS if getattr(verdict, name)}
        assert found == expected, f"planted {plant.__name__}: {verdict.examples}"


def copied(whole: Evidence) -> Evidence:
    """To plant violations in. The disks are the run's: see `own_disk`."""
    return Evidence(
        {directory: list(entries) for directory, entries in whole.acknowledged.items()},
        {
            directory: replace(found, chain=dict(found.chain), entries=list(found.entries))
            for directory, found in whole.found.items()
        },
        {directory: list(ends) for directory, ends in whole.returned.items()},
        list(whole.disks),
    )


def disks_are_read_as_servers_serve_them(evidence: Evidence) -> None:
    chain = evidence.found[DIRECTORY].chain
    for disk in evidence.disks:
        for name, content in chain.items():
            held = read_object(disk, DIRECTORY, name)
            assert held is not None
            assert held.startswith(content)
        assert read_object(disk, DIRECTORY, "nothing") == b""


def drop_from_chain(evidence: Evidence, folder: Path) -> None:
    entries = evidence.found[DIRECTORY].entries
    entries.remove(evidence.acknowledged[DIRECTORY][100])


def swap_in_chain(evidence: Evidence, folder: Path) -> None:
    entries = evidence.found[DIRECTORY].entries
    entries[50], entries[51] = entries[51], entries[50]


def repeat_in_chain(evidence: Evidence, folder: Path) -> None:
    entries = evidence.found[DIRECTORY].entries
    entries.append(entries[10])


def own_disk(evidence: Evidence, folder: Path) -> tuple[Path, str]:
    """Replace the first member's disk by a copy; return it and a segment of the chain on it."""
    disk = folder / "s1"
    shutil.copytree(evidence.disks[0], disk)
    evidence.disks[0] = disk
    return disk, max(
        evidence.found[DIRECTORY].chain, key=lambda name: len(evidence.found[DIRECTORY].chain[name])
    )


def flip_on_disk(evidence: Evidence, folder: Path) -> None:
    disk, name = own_disk(evidence, folder)
    path = object_path(disk, DIRECTORY, name)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def another_history_on_disk(evidence: Evidence, folder: Path) -> None:
    """Whole and verified extents of other bytes: what a second writer would have left. It is the chain that
    is made another one here, so what readers saw of it is left out.
    """
    evidence.returned[DIRECTORY].clear()
    evidence.found[DIRECTORY].committed_before = None
    disk, name = own_disk(evidence, folder)
    content = evidence.found[DIRECTORY].chain[name]
    evidence.found[DIRECTORY].chain[name] = content[:-1] + bytes([content[-1] ^ 1])
    evidence.disks = [disk]


def short_on_disk(evidence: Evidence, folder: Path) -> None:
    disk, name = own_disk(evidence, folder)
    object_path(disk, DIRECTORY, name).unlink()


def vanished_read(evidence: Evidence, folder: Path) -> None:
    found = evidence.found[DIRECTORY]
    assert found.committed_before is not None
    evidence.returned[DIRECTORY].append(
        found.committed_before.__class__(
            found.committed_before.epoch, found.committed_before.size, found.committed_before.digest ^ 1
        )
    )


PLANTED: dict[Callable[[Evidence, Path], None], set[str]] = {
    drop_from_chain: {"lost", "holes"},
    swap_in_chain: {"reordered"},
    repeat_in_chain: {"duplicated"},
    flip_on_disk: {"diverged"},
    another_history_on_disk: {"diverged"},
    short_on_disk: {"behind"},
    vanished_read: {"vanished"},
}
"""What is planted, and what the checker must call it."""
