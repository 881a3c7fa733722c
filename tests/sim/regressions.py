"""Seeds that once found a fault, with the fault: every run of the tests runs them.

A seed is a run of the current code: any change of timing makes it another run. So a row records what the seed
found, the commit on which it failed, and, where a directed test is possible, the file with that test, which
keeps the correction. The seeds are still run, because what found a fault once is an unusual run.

The newest row is the last. Rows are never removed.
"""

from typing import Final, NamedTuple


class Regression(NamedTuple):
    """One seed. `commit`: the last without the correction; `test`: the file with a test of it, or ''."""

    seed: int
    date: str
    commit: str
    what: str
    test: str = ""


REGRESSIONS: Final = (
    Regression(
        60939,
        "2026-11-22",
        "d8e7bc9",
        "a torn tail without space for its copy makes its object unusable until the next start",
        "tests/dos_server/test_torn_tails.py",
    ),
    Regression(
        108,
        "2026-11-22",
        "52bae56",
        "a damaged copy counted among those that lack bytes, and a take-over reported bytes as lost",
        "tests/dos_client/test_claim_machine.py",
    ),
    Regression(
        44,
        "2026-11-22",
        "e2f5753",
        "a worker of an earlier incarnation truncated an output below a newer incarnation's commits",
        "tests/dataflow/test_file_sink.py",
    ),
    Regression(
        10703,
        "2026-11-22",
        "6dedc55",
        "O12 expected a report of damage that a server cannot detect: a later power cut lost the mark too",
    ),
    Regression(
        240,
        "2026-11-22",
        "6dedc55",
        "the heal did not reset a sync that was to fail, and a directory could not be used after it",
    ),
    Regression(
        200096,
        "2026-11-22",
        "7ec4a46",
        "a take-over reported bytes as lost that one member alone had, damaged after it answered the claim",
        "tests/dos_client/test_taken_back.py",
    ),
    Regression(
        200038,
        "2026-11-22",
        "7ec4a46",
        "a claim's read ended at the size of the one member that was connected at that moment",
        "tests/dos_client/test_taken_back.py",
    ),
    Regression(
        201903,
        "2026-11-22",
        "7ec4a46",
        "O4 remembered a segment and a claim's epoch that only the disks replaced from backups had",
    ),
    Regression(
        300873,
        "2026-11-22",
        "c1cbbb7",
        "an object without space to be rewritten in its place was unusable until the next start",
        "tests/dos_server/test_torn_tails.py",
    ),
    Regression(
        301811,
        "2026-11-22",
        "c1cbbb7",
        "O12 expected again what a server cannot know to have lost, after its object was damaged again",
    ),
    Regression(
        202406,
        "2026-11-22",
        "7ec4a46",
        "drivers on a far store superseded each other before any of them could open the manifest",
        "tests/checkpoint/test_far_stores.py",
    ),
    Regression(
        2951,
        "2026-11-22",
        "cff3a6b",
        "a worker whose circuit had failed ended with another error when it was to report that it paused",
        "tests/checkpoint/test_participant_core.py",
    ),
    Regression(
        2309,
        "2026-11-22",
        "991928c",
        "the end of a sync that had begun before an object was poisoned counted for its new copy",
        "tests/dos_server/test_repairs.py",
    ),
    Regression(
        3083,
        "2026-11-22",
        "81c91e5",
        "visitors wrote to each server that was to join: the simulated person had not kept them away",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        7321,
        "2026-11-22",
        "81c91e5",
        "O12 expected a report of damage done while the mark was missing after a power cut",
    ),
    Regression(
        3732,
        "2026-11-22",
        "81c91e5",
        "an object without space to be rewritten is listed with 0 bytes; a shorter copy could replace it",
        "tests/dos_server/test_repairs.py",
    ),
    Regression(
        21459,
        "2026-11-22",
        "8bd19fd",
        "a damaged file of a directory that was never claimed prevented an addition permanently",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        37088,
        "2026-11-22",
        "638ccd2",
        "a replacement waited forever for a new server that had lost its disk again",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        14378,
        "2026-11-22",
        "a72a537",
        "a replacement kept requesting copies from a member whose disk was lost while it was read",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        35235,
        "2026-11-22",
        "0c818a6",
        "a wait by a skewed clock of the simulator ended too early by a rounding, and time did not advance",
        "tests/sim/test_environment.py",
    ),
    Regression(
        43656,
        "2026-11-22",
        "31c5695",
        "O12 missed again the bytes lost to damage in a file of visitors, after the server reported 0 bytes",
        "tests/sim/test_visitors.py",
    ),
    Regression(
        49327,
        "2026-11-22",
        "0207c1d",
        "O7 missed an incarnation's start, removed by a newer one before its own driver was notified",
        "tests/sim/test_regions.py",
    ),
    Regression(
        31869,
        "2026-11-22",
        "0207c1d",
        "an accepted loss counted only after the end of its command; another command had ended before",
        "tests/sim/test_membership.py",
    ),
    Regression(
        51637,
        "2026-11-22",
        "0207c1d",
        "a recovery killed between deciding a record and sending it could not be continued",
        "tests/dos_client/test_recovering.py",
    ),
    Regression(
        66114,
        "2026-11-22",
        "9c1ca5e",
        "O7 missed a checkpoint whose segment a newer incarnation had removed before its driver was notified",
        "tests/sim/test_regions.py",
    ),
    Regression(
        1000900045,
        "2026-11-26",
        "05bfceaa",
        "a take-over waited for ever for the one member that had a record, after that member lost its disk",
        "tests/dos_client/test_taken_back.py",
    ),
    Regression(
        1000070029,
        "2026-12-01",
        "330575f4",
        "a server that was stopped before it had noticed that `d` was removed ended with CorruptDataError",
        "tests/dos_server/test_lost_directories.py",
    ),
)
