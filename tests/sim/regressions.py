"""Seeds that once found a fault, with the fault: every run of the tests runs them.

A seed is a run of the code as it is now: every change of a moment makes it another run. So a line here is
kept for what it was, with the commit on which it failed, and wherever a directed test is possible it stands
beside it, and keeps the correction. The seeds are still run because what found something once is in a
corner.

A table, the newest line last. Lines are never removed.
"""

from typing import Final, NamedTuple


class Regression(NamedTuple):
    """One seed. `commit`: the last without the correction; `test`: the file with a test of it, or nothing."""

    seed: int
    found: str
    commit: str
    what: str
    test: str = ""


REGRESSIONS: Final = (
    Regression(
        60939,
        "2026-11-22",
        "d8e7bc9",
        "a torn tail that finds no room for its copy makes its object unusable until the next start",
        "tests/dos_server/test_torn_tails.py",
    ),
    Regression(
        108,
        "2026-11-22",
        "52bae56",
        "a damaged copy counted among those that hold less, and a take-over said that bytes were lost",
        "tests/dos_client/test_claim_machine.py",
    ),
    Regression(
        44,
        "2026-11-22",
        "e2f5753",
        "a worker left over from an earlier incarnation cut an output back behind a newer one's commits",
        "tests/dataflow/test_file_sink.py",
    ),
    Regression(
        10703,
        "2026-11-22",
        "6dedc55",
        "O12 asked a server for damage that it cannot see: the power cut that followed took the mark as well",
    ),
    Regression(
        240,
        "2026-11-22",
        "6dedc55",
        "the heal did not forget a sync that was to fail, and a directory could not be used after it",
    ),
    Regression(
        200096,
        "2026-11-22",
        "7ec4a46",
        "a take-over called bytes lost that only one member had, damaged after it had answered the claim",
        "tests/dos_client/test_taken_back.py",
    ),
    Regression(
        200038,
        "2026-11-22",
        "7ec4a46",
        "what a claim reads ended where the one member ended that was there at that moment",
        "tests/dos_client/test_taken_back.py",
    ),
    Regression(
        201903,
        "2026-11-22",
        "7ec4a46",
        "O4 knew of a segment and of a claim's epoch that only disks had had which a backup replaced",
    ),
    Regression(
        300873,
        "2026-11-22",
        "c1cbbb7",
        "an object that found no room to be written again in its place was unusable until the next start",
        "tests/dos_server/test_torn_tails.py",
    ),
    Regression(
        301811,
        "2026-11-22",
        "c1cbbb7",
        "O12 asked again for what a server cannot know to have lost, once its object was damaged again",
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
        "a worker whose circuit had failed ended with an error of its own when it was to say that it paused",
        "tests/checkpoint/test_participant_core.py",
    ),
    Regression(
        2309,
        "2026-11-22",
        "991928c",
        "the end of a sync that had begun before an object was poisoned was taken for that of its new copy",
        "tests/dos_server/test_repairs_interrupted.py",
    ),
    Regression(
        3083,
        "2026-11-22",
        "81c91e5",
        "visitors filled each server that was to come in: the simulated person had not kept them away",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        7321,
        "2026-11-22",
        "81c91e5",
        "O12 asked a server for damage done after a power cut had taken the mark, before it was there again",
    ),
    Regression(
        3732,
        "2026-11-22",
        "81c91e5",
        "what found no room to be written again is listed with 0 bytes; a shorter copy could take its place",
        "tests/dos_server/test_repairs.py",
    ),
    Regression(
        21459,
        "2026-11-22",
        "8bd19fd",
        "a damaged file of a directory that nobody ever claimed stopped a member from being added for good",
        "tests/dos_client/test_replacing_refused.py",
    ),
    Regression(
        37088,
        "2026-11-22",
        "638ccd2",
        "a replacement whose new server had lost its disk once more waited for it for ever",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        14378,
        "2026-11-22",
        "a72a537",
        "a replacement went on asking a member for copies whose disk was lost while it was read",
        "tests/dos_client/test_replacing.py",
    ),
    Regression(
        35235,
        "2026-11-22",
        "0c818a6",
        "a wait by a skewed clock of the simulator ended a rounding too early, and time stood still",
        "tests/sim/test_world.py",
    ),
    Regression(
        43656,
        "2026-11-22",
        "31c5695",
        "O12 missed once more what damage had taken from a file of visitors, when the server told of 0 bytes",
        "tests/sim/test_visitors.py",
    ),
    Regression(
        49327,
        "2026-11-22",
        "0207c1d",
        "O7 missed an incarnation's start, removed by a newer one before its own driver heard of it",
        "tests/sim/test_regions.py",
    ),
    Regression(
        31869,
        "2026-11-22",
        "0207c1d",
        "an accepted loss counted only when its command had ended; another of the person's ended first",
        "tests/sim/test_membership.py",
    ),
    Regression(
        51637,
        "2026-11-22",
        "0207c1d",
        "a recovery killed between deciding a record and giving it out could not be gone on with",
        "tests/dos_client/test_recovering.py",
    ),
    Regression(
        66114,
        "2026-11-22",
        "9c1ca5e",
        "O7 missed a cut whose segment a newer incarnation had removed before its own driver heard of it",
        "tests/sim/test_regions.py",
    ),
)
