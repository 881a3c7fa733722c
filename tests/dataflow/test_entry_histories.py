"""Entry points in random histories: every reader gets the same rows with the same times, in each origin in
one order, none below a mark that was given before, no acknowledged batch lost and none doubled. Each weakened
rule is found.
"""

from types import ModuleType

import pytest

from checkpoint.core.records import inputs as entry
from dataflow.core import event_time
from tests.dataflow import entry_model
from tests.support.planted_source import planted

HISTORIES = 60
BUGS: dict[str, tuple[ModuleType, str, str]] = {
    "a new claimant continues below the last mark": (
        entry,
        "self.last_time = max(now, self.last_time + 1, self.mark + 1)",
        "self.last_time = max(now, self.last_time + 1)",
    ),
    "a new claimant continues below the last time": (
        entry,
        "self.last_time = max(now, self.last_time + 1, self.mark + 1)",
        "self.last_time = max(now, self.mark + 1)",
    ),
    "marks go back when the clock does": (
        entry,
        "self.mark = max(self.mark, due)",
        "self.mark = due",
    ),
    "a new origin does not wait for the version": (
        entry,
        "if newest is None or newest.version < number:",
        "if newest is None:",
    ),
    "a new origin begins below the marks of older ones": (
        entry,
        "floor = max(floor, newest.mark)",
        "pass",
    ),
    "an origin without rows gives no mark": (
        entry,
        "if due <= self.mark and not restated:",
        "if self.last_time <= self.mark and not restated:",
    ),
    "an unattended origin is claimed by nobody": (
        entry,
        "if now_s - at_s >= limit_s)",
        "if now_s - at_s >= 1e6)",
    ),
    "a row at the mark is on time": (entry, "return times <= self.mark", "return times < self.mark"),
    "a clock counts itself as the majority": (
        entry,
        "return 2 * near > 1 + len(self._peers)",
        "return near > 0",
    ),
    "the input mark is that of the origins that have one": (
        event_time,
        "if not version or len(marks) != version:",
        "if not marks:",
    ),
    "the input mark is the greatest": (
        event_time,
        "split = min(marks, key=marks.__getitem__)",
        "split = max(marks, key=marks.__getitem__)",
    ),
    "a batch is acknowledged after its own sync only": (
        entry_model,
        "            if self.checkpoint[entry]:\n                continue\n            chain = self",
        (
            "            if self.checkpoint[entry]:\n                own = self.serving[entry][origin].batch"
            "\n                mine = self.producers[origin]"
            "\n                mine.acknowledged = max(mine.acknowledged, own)"
            "\n                continue\n            chain = self"
        ),
    ),
    "a new claimant gives recorded rows a time again": (
        entry_model,
        "producer.sent = served.batch",
        "producer.sent = producer.acknowledged",
    ),
    "a new claimant does not read what is recorded": (
        entry_model,
        "fold.newest_mark, fold.last_time)\n        self.batch, self.digest, self.recorded",
        "None, 0)\n        self.batch, self.digest, self.recorded",
    ),
}


@pytest.mark.parametrize("first", range(0, HISTORIES, 20))
def test_every_reader_gets_the_same_rows_with_the_same_times(first: int) -> None:
    for seed in range(first, first + 20):
        entry_model.play(seed)
    assert seed == first + 19


@pytest.mark.parametrize("bug", BUGS)
def test_each_weakened_rule_is_found(bug: str) -> None:
    module, before, after = BUGS[bug]
    names = planted(module, before, after)
    play = names["play"] if module is entry_model else entry_model.play
    core, times = (names if module is one else None for one in (entry, event_time))
    for seed in range(HISTORIES):
        try:
            play(seed, core=core, times=times)
        except Exception:
            return
    pytest.fail(f"not found in {HISTORIES} histories: {bug}")
