"""Input divisions and counters of dropped rows: their records, and which of them count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.progress import dropped_rows, dropped_text, end_text, late_by_text, merge_counters
from checkpoint.core.records.divisions import (
    NO_MARK,
    Division,
    DivisionFold,
    Mark,
    decode_division,
    encode_division,
)
from checkpoint.errors import ManifestError
from tests.checkpoint.manifest_samples import names


@given(
    st.dictionaries(
        names, st.dictionaries(names, st.tuples(st.integers(0, 9), st.integers(9, 2**60))), max_size=3
    ),
    st.integers(0, 9),
)
def test_a_division_returns_from_its_record(sources, workers) -> None:
    division = Division(4, 99, sources, workers)
    assert decode_division(*encode_division(division)) == division
    assert len(encode_division(division).strings) == 1 + bool(workers), "0 is left out"


@given(st.integers(1, 2**40), st.booleans(), st.integers(1, 2**40), st.integers(0, 9))
def test_the_mark_of_a_step_returns_from_its_record(checkpoint, final, incarnation, workers) -> None:
    division = Division(4, 99, {"in": {"a": (0, 7)}}, workers, Mark(checkpoint, final, incarnation))
    record = encode_division(division)
    assert record.ints == (4, 99, checkpoint, int(final), incarnation)
    found = decode_division(*record)
    assert found == division
    assert isinstance(found.mark.final, bool)


def test_a_step_that_requests_no_checkpoint_has_a_record_as_in_earlier_versions() -> None:
    record = encode_division(Division(4, 99, {}))
    assert record.ints == (4, 99)
    assert decode_division(*record).mark == NO_MARK
    assert encode_division(Division(4, 99, {}, mark=Mark(0, final=True, incarnation=7))).ints == (4, 99)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 9])
def test_a_record_with_another_number_of_ints_is_refused(count) -> None:
    ints = tuple(range(1, count + 1))
    with pytest.raises(
        ManifestError, match="expected the step and the time of a division, possibly a checkp"
    ):
        decode_division(ints, (b"{}",))


def test_marks_are_kept_with_the_divisions_that_count() -> None:
    fold, mark = DivisionFold(3), Mark(2, final=True, incarnation=65536)
    fold.add(Division(4, 9, {}, mark=mark))
    fold.add(Division(5, 9, {}, mark=mark._replace(checkpoint=3)))
    fold.add(Division(5, 10, {}))
    assert [one.mark for one in fold.between(3, 9)] == [mark, NO_MARK], "a step that is divided anew"
    fold.forget(4)
    assert [one.mark for one in fold.between(3, 9)] == [NO_MARK]


@pytest.mark.parametrize(
    ("ints", "strings"),
    [
        ((1,), (b"{}",)),
        ((1, 2), (b"[",)),
        ((1, 2), (b'{"in": {"a": [3, 2]}}',)),
        ((1, 2), (b'{"in": {"a": [3]}}',)),
        ((1, 2), (b"{}", b"two")),
    ],
)
def test_a_division_that_cannot_be_is_refused(ints, strings) -> None:
    with pytest.raises(ManifestError):
        decode_division(ints, strings)


def test_before_the_first_checkpoint_steps_of_another_number_of_workers_do_not_count() -> None:
    fold = DivisionFold(workers=2)
    for step in (1, 2, 3):
        fold.add(Division(step, 9, {}, workers=3))
    assert (fold.last_step, fold.others) == (0, True)
    for step in (1, 2):
        fold.add(Division(step, 10, {}, workers=2))
    assert [one.time_ms for one in fold.between(0, 9)] == [10, 10]
    fold.add(Division(1, 11, {}, workers=1))
    assert fold.between(0, 9) == []
    after_a_checkpoint = DivisionFold(1)
    after_a_checkpoint.add(Division(2, 9, {}, workers=3))
    assert (after_a_checkpoint.last_step, after_a_checkpoint.others) == (2, False)


def test_a_record_of_no_step_voids_all_before_it() -> None:
    fold = DivisionFold(3)
    for step in (4, 5, 0):
        fold.add(Division(step, 9, {}))
    assert fold.between(0, 9) == []
    fold.add(Division(4, 10, {}))
    assert [one.time_ms for one in fold.between(3, 9)] == [10]


@given(st.integers(0, 5), st.lists(st.integers(1, 12), max_size=30))
def test_the_newest_line_of_divisions_counts_and_has_no_hole(after, goes_back_to) -> None:
    fold, line = DivisionFold(after), {}
    written = 0
    for time_ms, back in enumerate(goes_back_to):
        step = min(back, written + 1)
        line = {n: value for n, value in line.items() if n < step}
        line[step] = Division(step, time_ms, {})
        written = step
        fold.add(line[step])
        expected = [value for n, value in sorted(line.items()) if n > after]
        assert fold.between(after, 10**6) == expected
        assert fold.last_step == max(after, written)
    fold.forget(after + 2)
    assert fold.between(0, 10**6) == [d for n, d in sorted(line.items()) if n > after + 2]


def test_a_line_that_is_forgotten_whole_continues_where_it_ended() -> None:
    fold = DivisionFold(3)
    for step in (4, 5):
        fold.add(Division(step, 0, {}))
    fold.forget(5)
    assert (fold.after, fold.last_step) == (5, 5)
    fold.add(Division(6, 0, {}))
    assert fold.last_step == 6


def test_a_chain_trimmed_above_the_checkpoint_gives_nothing_to_replay_and_a_hole_is_an_error() -> None:
    fold = DivisionFold(3)
    fold.add(Division(7, 1, {}))
    assert fold.last_step == 3
    fold.add(Division(4, 2, {}))
    fold.add(Division(5, 3, {}))
    with pytest.raises(ManifestError, match="the input division of step 8 follows that of step 5"):
        fold.add(Division(8, 4, {}))


@given(st.integers(0, 5), st.lists(st.integers(1, 9), max_size=12))
def test_divisions_kept_are_the_newest_line_without_a_hole(after: int, steps: list[int]) -> None:
    fold, line = DivisionFold(after), dict[int, int]()
    for time_ms, step in enumerate(steps):
        if step <= after:
            line = {}
        elif line and step > max(line) + 1:
            with pytest.raises(ManifestError, match="follows that of step"):
                fold.add(Division(step, time_ms, {}))
        else:
            line = {known: at for known, at in line.items() if known < step}
            if step == max(line, default=after) + 1:
                line[step] = time_ms
            fold.add(Division(step, time_ms, {}))
            continue
        if step <= after:
            fold.add(Division(step, time_ms, {}))
    assert fold.between(after, 99) == [Division(step, at, {}) for step, at in sorted(line.items())]
    assert fold.last_step == max(line, default=after)
    for until in (after + 1, after + 2):
        fold.forget(until)
        assert [one.step for one in fold.between(0, 99)] == sorted(step for step in line if step > until)


# --- dropped rows -----------------------------------------------------------------------------------------


def test_rows_that_were_dropped_are_added_up_by_rule_and_operator() -> None:
    workers = [
        {"sum": {"late_rows_dropped": 1, "rows": 9}, "join": {"null_rows_dropped": 2}},
        {"sum": {"late_rows_dropped": 2000, "null_rows_dropped": 0}},
    ]
    found = dropped_rows(workers)
    assert found == {"late": {"sum": 2001}, "null": {"join": 2}}
    text = dropped_text(found)
    assert text.startswith("2,001 late rows were dropped by 'sum' 2,001: give event_time")
    assert "; 2 null rows were dropped by 'join' 2: " in text
    assert dropped_text({"odd": {"a": 1}}) == "1 odd row was dropped by 'a' 1"
    assert dropped_text({}) == ""
    assert end_text({}) == "all input is processed"
    assert end_text(found) == f"all input is read, but {text}"
    into = {"late_by_us_max": 3, "rows": 4}
    merge_counters(into, {"late_by_us_max": 2, "rows": 5, "new": 1})
    assert into == {"late_by_us_max": 3, "rows": 9, "new": 1}
    assert late_by_text({}) == ""
