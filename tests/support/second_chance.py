"""`./run test` runs tests that failed beside others once more, alone.

Real processes have real time limits. On a machine that stalls for seconds, one of several thousand tests may
exceed its limit. If it passes alone, it is reported as flaky, to be repaired, and does not fail the run.
Tests of what must never happen, on any machine, get no second run: seeds, models, power failures, chaos. If
many tests failed at once, none gets one.
"""

from typing import Final

import pytest

NEVER_AGAIN: Final = (
    "tests/chaos/",
    "tests/contract/",
    "tests/dos_chaos/",
    "tests/fuzz/",
    "tests/models/",
    "tests/power/",
    "tests/shells/",
    "tests/sim/",
)
"""Tests that check what a run lost or served wrongly: one failure is a finding."""
AGAIN_MAX: Final = 10
DIGEST_CHARACTERS_MAX: Final = 600
FAILED: Final = "dos/failed"
"""Where a run leaves, for the one after it, what failed and why in a few words (pytest's cache)."""
SLOW: Final = "slow"
"""A property of a test that missed a time limit, and was judged by a second run of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--alone",
        action="store_true",
        help="with --last-failed: the second chance of what failed beside other tests",
    )


def no_second_chance(ids: list[str]) -> str:
    """Why these tests have failed for good; '' when they may run once more."""
    for one in ids:
        if one.startswith(NEVER_AGAIN):
            return f"{one} has no second chance: one failure is a finding"
    if len(ids) > AGAIN_MAX:
        return f"{len(ids)} tests failed; at most {AGAIN_MAX} are a busy machine's"
    return ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After --last-failed has left out the others."""
    if config.getoption("alone") and (why := no_second_chance([item.nodeid for item in items])):
        cache = getattr(config, "cache", None)  # `-p no:cacheprovider` runs without it
        digests: dict[str, str] = cache.get(FAILED, {}) if cache is not None else {}
        raise pytest.UsageError(*(f"{name}: {digest}" for name, digest in digests.items()), why)


def digest_of(report: pytest.TestReport) -> str:
    """What went wrong, in so few words that they can stand at the end of a long run's output."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return text if len(text) <= DIGEST_CHARACTERS_MAX else f"{text[:DIGEST_CHARACTERS_MAX]} …"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if getattr(config, "cache", None) is not None and not config.getoption("alone"):
        failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        config.cache.set(FAILED, {report.nodeid: digest_of(report) for report in failed})
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == SLOW:
                terminalreporter.write_line(f"FLAKY {report.nodeid}: {value}", yellow=True)
    if config.getoption("alone"):
        for report in terminalreporter.getreports("passed"):
            terminalreporter.write_line(
                f"FLAKY {report.nodeid}: failed beside others, passed alone. Repair it.", yellow=True
            )
