"""The timeline: every record is counted once, whatever the number of lines; time where records tell it."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from journal import Op, Record
from journal.core.inspection import Located
from journal.core.timeline import Timeline
from journal.limits import timeline_stretches_max
from journal.timeline import as_json, as_text
from tests.journal.journal_command import journal
from tests.journal.test_cli import V0, V1

BEGIN_MS = 1_700_000_000_000


def timeline_of(records: list[Record], bytes_each: int = 100) -> Timeline:
    timeline = Timeline()
    for number, record in enumerate(records):
        timeline.take(Located("s", number * bytes_each, (number + 1) * bytes_each, 1, record))
    return timeline


def mark(ms: int) -> Record:
    return Record(Op.MARK, ints=(BEGIN_MS + ms,))


WRITE = Record(Op.WRITE, ints=(0,), strings=(b"f", b"x"))
ANY = st.one_of(
    st.just(WRITE),
    st.builds(mark, st.integers(0, 10**8)),
    st.builds(lambda step: Record(Op.CUT, ints=(step, step, 1), strings=(b"{}",)), st.integers(0, 9)),
)


@given(st.lists(ANY, min_size=1, max_size=60), st.integers(1, 40))
def test_every_record_is_counted_once(records: list[Record], lines: int) -> None:
    found = timeline_of(records).stretches(lines)
    assert 0 < len(found) <= lines
    assert sum(one.records for one in found) == len(records)
    assert sum(one.bytes for one in found) == 100 * len(records)
    assert sum(one.events["checkpoints"] for one in found) == sum(record.op is Op.CUT for record in records)
    begins = [one.begin for one in found]
    assert len({later - earlier for earlier, later in pairwise(begins)}) <= 1, "equally long"


def test_what_stands_between_two_clocks_belongs_to_the_first() -> None:
    found = timeline_of([WRITE, mark(0), WRITE, WRITE, mark(9_000), WRITE]).stretches(10)
    assert [(one.begin - BEGIN_MS, one.records) for one in found if one.records] == [(0, 4), (9_000, 2)]
    assert len(found) == 10


def test_memory_does_not_grow_with_the_journal() -> None:
    timeline = timeline_of([mark(60_000 * number) for number in range(3 * timeline_stretches_max)])
    assert len(timeline._by_time._found) <= timeline_stretches_max
    assert sum(one.records for one in timeline.stretches(7)) == 3 * timeline_stretches_max


def test_the_chart_has_a_bar_for_the_bytes_and_names_what_stands_out() -> None:
    timeline = timeline_of(
        [mark(0), WRITE, WRITE, mark(1000), Record(Op.CUT, ints=(1, 1, 1), strings=(b"{}",))]
    )
    first, second = as_text(timeline, lines=5, columns=100).splitlines()
    assert first.count("#") * 2 == second.count("#") * 3 or first.count("#") > second.count("#") > 0
    assert "300 bytes" in first
    assert second.endswith("200 bytes  2 records  1 checkpoints")
    report = json.loads(as_json(timeline, lines=5))
    assert report["by"] == "time"
    assert report["stretches"][1] == {"begin": BEGIN_MS + 1000, "records": 2, "bytes": 200, "checkpoints": 1}


def test_a_journal_without_clocks_is_divided_by_offset() -> None:
    assert json.loads(journal("timeline", V0, "--json").stdout)["by"] == "offset"
    assert journal("timeline", V1).returncode == 0
    assert as_text(Timeline(), lines=3, columns=80) == "no records"
