"""The evidence of a run, and everything in it judged against everything. Disks are read without servers."""

from dataclasses import dataclass, replace
from pathlib import Path

from dos_chaos.core.checker import Verdict, WrittenRecord
from dos_chaos.workload import Found, judge_directory
from journal import Position
from tests.chaos.disks import read_object


@dataclass(slots=True)
class Evidence:
    """The evidence of a run, by directory. `returned`: what committed reads returned during the faults;
    `disks`: the data directories of the members, whose servers are dead."""

    acknowledged: dict[str, list[WrittenRecord]]
    found: dict[str, Found]
    returned: dict[str, list[Position]]
    disks: list[Path]


def judge(evidence: Evidence) -> Verdict:
    """Everything, against everything."""
    verdict = Verdict()
    for directory, found in evidence.found.items():
        copies = {
            data.name: {name: read_object(data, directory, name) for name in found.chain}
            for data in evidence.disks
        }
        judge_directory(
            verdict,
            directory,
            replace(found, copies=copies),
            evidence.acknowledged[directory],
            evidence.returned[directory],
        )
    return verdict
