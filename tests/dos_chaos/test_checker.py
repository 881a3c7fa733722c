"""The checker finds every kind of violation, each planted alone in a history that is otherwise correct.

These tests use plain values; `test_chaos.py` does the same on a real run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from dos_chaos.core.checker import (
    VIOLATIONS,
    DamagedRecordError,
    Verdict,
    WrittenRecord,
    judge_chain,
    judge_member,
    make_record,
    read_entry,
)
from dos_chaos.workload import AckLog, count_acknowledged, read_log
from journal import Record

Entries = list[WrittenRecord]


def history() -> Entries:
    """Three writers, 10 records each."""
    return [
        make_record("d", epoch, number, sequence, b"x")[1]
        for sequence, (epoch, number) in enumerate(((e, n) for e in (1, 4, 5) for n in range(1, 11)), 1)
    ]


def judged(acknowledged: Entries, chain: list[WrittenRecord | None]) -> Verdict:
    verdict = Verdict()
    judge_chain(verdict, "d", acknowledged, chain)
    return verdict


def violations(verdict: Verdict) -> dict[str, int]:
    return {name: getattr(verdict, name) for name in VIOLATIONS if getattr(verdict, name)}


def test_a_good_history_is_good_and_what_is_in_doubt_may_be_there_or_not() -> None:
    verdict = judged(history()[:25], history())
    assert verdict.good
    assert (verdict.acknowledged, verdict.found) == (25, 30)
    assert judged(history()[:10], history()[:12]).good


def drop(chain: Entries) -> None:
    del chain[14]


def drop_the_last(chain: Entries) -> None:
    del chain[-1]


def swap(chain: Entries) -> None:
    chain[14], chain[15] = chain[15], chain[14]


def swap_two_writers(chain: Entries) -> None:
    chain[9], chain[10] = chain[10], chain[9]


def repeat(chain: Entries) -> None:
    chain.insert(20, chain[3])


def replace_content(chain: Entries) -> None:
    chain[7] = make_record("d", 1, 8, 8, b"another's bytes")[1]


def damage(chain: list[WrittenRecord | None]) -> None:
    chain[7] = None


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (drop, {"lost": 1, "holes": 2}),
        (drop_the_last, {"lost": 1}),
        (swap, {"reordered": 1}),
        (swap_two_writers, {"reordered": 1}),
        (repeat, {"duplicated": 1}),
        (replace_content, {"lost": 1}),
        (damage, {"damaged": 1, "lost": 1, "holes": 2}),
    ],
)
def test_a_planted_violation_is_found(
    plant: Callable[[list[WrittenRecord]], None], expected: dict[str, int]
) -> None:
    chain = history()
    plant(chain)
    verdict = judged(history(), chain)
    assert violations(verdict) == expected
    assert not verdict.good
    assert verdict.examples


def test_a_gap_below_what_nobody_was_notified_is_found_too() -> None:
    chain = history()
    del chain[14]
    assert violations(judged(history()[:10], chain)) == {"holes": 2}


def test_two_writers_who_believe_in_one_record_are_found() -> None:
    assert violations(judged([*history(), history()[4]], history())) == {"twice": 1}


CHAIN = {"J.1": bytes(range(200)), "J.4": b"second"}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (CHAIN, {}),
        ({**CHAIN, "J.1": CHAIN["J.1"] + b"a dead writer's leftovers", "J.9": b"off the chain"}, {}),
        ({**CHAIN, "J.1": b"\x00\x01\x03" + CHAIN["J.1"][3:]}, {"diverged": 1}),
        ({**CHAIN, "J.1": b"\x07"}, {"diverged": 1}),
        ({**CHAIN, "J.1": CHAIN["J.1"][:-1]}, {"behind": 1}),
        ({"J.1": CHAIN["J.1"]}, {"behind": 1}),
        ({**CHAIN, "J.4": None}, {"diverged": 1}),
    ],
)
def test_a_members_copies_are_compared(held: dict[str, bytes | None], expected: dict[str, int]) -> None:
    verdict = Verdict()
    judge_member(verdict, "s1", CHAIN, held)
    assert violations(verdict) == expected


def test_a_record_says_whether_it_is_what_its_writer_made() -> None:
    record, entry = make_record("d", 3, 7, 40, b"payload")
    assert read_entry("d", record) == entry
    with pytest.raises(DamagedRecordError):
        read_entry("another", record)
    for other in (
        Record(record.op, 41, record.ints, record.strings),
        Record(record.op, record.tag, record.ints, (b"payloae",)),
        Record(record.op, record.tag, record.ints[:2], record.strings),
    ):
        with pytest.raises(DamagedRecordError):
            read_entry("d", other)


def test_the_log_of_a_killed_writer_is_read_up_to_its_last_whole_entry(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert count_acknowledged(path) == 0
    with AckLog(path) as log:
        log.write(history()[:10])
        log.write(history()[10:12])
    with path.open("ab") as file:
        file.write(b"half an entry")
    assert count_acknowledged(path) == 12
    assert read_log(path) == history()[:12]
