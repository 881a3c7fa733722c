"""The timeline: every record is counted once, whatever the number of lines; time where records tell it."""

import json
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from journal import Op, Record
from journal.core.inspection import Located
from journal.core.timeline import Timeline
from journal.dump import Bound, as_line, dumper
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
    st.builds(lambda step: Record(Op.CHECKPOINT, ints=(step, step, 1), strings=(b"{}",)), st.integers(0, 9)),
)


@given(st.lists(ANY, min_size=1, max_size=60), st.integers(1, 40))
def test_every_record_is_counted_once(records: list[Record], lines: int) -> None:
    found = timeline_of(records).stretches(lines)
    assert 0 < len(found) <= lines
    assert sum(one.records for one in found) == len(records)
    assert sum(one.bytes for one in found) == 100 * len(records)
    assert sum(one.events["checkpoints"] for one in found) == sum(
        record.op is Op.CHECKPOINT for record in records
    )
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
        [mark(0), WRITE, WRITE, mark(1000), Record(Op.CHECKPOINT, ints=(1, 1, 1), strings=(b"{}",))]
    )
    first, second = as_text(timeline, lines=5, columns=100).splitlines()
    assert first.count("#") * 2 == second.count("#") * 3 or first.count("#") > second.count("#") > 0
    assert "300 bytes" in first
    assert second.endswith("200 bytes  2 records  from 300  1 checkpoints")
    report = json.loads(as_json(timeline, lines=5))
    assert report["by"] == "time"
    assert report["stretches"][1] == {
        "begin": BEGIN_MS + 1000, "offset": 300, "records": 2, "bytes": 200, "checkpoints": 1,
    }  # fmt: skip


def test_a_journal_without_clocks_is_divided_by_offset() -> None:
    assert json.loads(journal("timeline", V0, "--json").stdout)["by"] == "offset"
    assert journal("timeline", V1).returncode == 0
    assert as_text(Timeline(), lines=3, columns=80) == "no records"


def checkpoint(number: int, ms: int) -> Record:
    text = b'{"cut":%d,"step":4,"wall_time_ms":%d,"workers":{}}' % (number, BEGIN_MS + ms)
    return Record(Op.CHECKPOINT, ints=(number, 4, 1), strings=(text,))


def test_a_manifest_has_times_because_its_checkpoints_have() -> None:
    timeline = timeline_of([Record(Op.SNAPSHOT_END), checkpoint(1, 0), checkpoint(2, 5_000)])
    assert timeline.by_time
    assert [one.offset for one in timeline.stretches(10) if one.records] == [0, 200]


def dumped(begin: Bound, end: Bound | None, *, times: bool = False) -> list[str]:
    """The lines of a journal with a clock each second, at offset 100, 300, ..."""
    records = [record for number in range(4) for record in (WRITE, mark(1000 * number))]
    located = [Located("s", 100 * n, 100 * n + 100, 1, record) for n, record in enumerate(records)]
    lines: list[str] = []
    dumper(lines.append, as_line, begin=begin, end=end, times=times)(located)
    return "".join(lines).splitlines()


def test_records_are_shown_from_a_time_to_a_time_or_an_offset_with_their_times() -> None:
    def at(second: float) -> datetime:
        return datetime.fromtimestamp(BEGIN_MS / 1000 + second, UTC)

    assert [line.split()[0] for line in dumped(at(1), at(2))] == ["300", "400"]
    assert [line.split()[0] for line in dumped(at(0.5), 500)] == ["300", "400"]
    assert [line.split()[0] for line in dumped(200, at(0))] == []
    first, second, third, *_ = dumped(0, None, times=True)
    assert first.startswith("0 WRITE ")
    assert second.startswith("100 2023-11-14T22:13:20.000+00:00 MARK ")
    assert third.startswith("200 2023-11-14T22:13:20.000+00:00 WRITE "), "the last time that is known"


def test_the_command_takes_offsets_and_times_and_refuses_anything_else() -> None:
    whole = journal("dump", V1).stdout.splitlines()
    assert journal("dump", V1, "--from", "time:2999-01-01T00:00", "--to", "99999999").stdout == ""
    assert journal("dump", V1, "--from", "0", "--times").stdout.count("\n") == len(whole)
    for bad in ("soon", "step:4", "-1"):
        refused = journal("dump", V1, f"--from={bad}")
        assert refused.returncode == 2
        assert "--from" in refused.stderr
