"""The figures of a run and its report, from plain values."""

import pytest

from dos_chaos.core.checker import Verdict
from dos_chaos.core.report import (
    GOOD,
    NOT_RECOVERED,
    VIOLATION,
    ChaosResult,
    FaultWindow,
    Gap,
    LatencyHistogram,
    Measures,
    as_json,
    as_markdown,
    gap_of,
    timeline,
)

KILL = FaultWindow("kill", ("s1",), 2.0, 4.0, quorum_left=True)
STOP = FaultWindow("stop", ("s1", "s2"), 6.0, 7.0, quorum_left=False, note="observed")


def measured() -> Measures:
    """One chain; a record each 50 ms, except for 2.0 to 4.5 s and 6.0 to 7.0 s."""
    measures = Measures()
    measures.begin("a", 0.0)
    begins, ends = {2_000: measures.fault_begins, 6_000: measures.fault_begins}, {4_000, 7_000}
    for ms in range(0, 10_000, 50):
        if ms in begins:
            begins[ms](ms / 1_000)
        if ms in ends:
            measures.fault_ends(ms / 1_000)
        if not (2_000 <= ms < 4_500 or 6_000 <= ms < 7_000):
            measures.add("a", ms / 1_000, [ms / 1_000 - 0.01])
    measures.finish(10.0)
    return measures


def test_a_gap_belongs_to_the_fault_that_caused_it() -> None:
    measures = measured()
    assert measures.gaps == [Gap(1.95, 4.5), Gap(5.95, 7.0)]
    assert gap_of(measures, [KILL, STOP], 0) == Gap(2.0, 4.5)
    assert gap_of(measures, [KILL, STOP], 1) == Gap(6.0, 7.0)
    assert (measures.calm.seconds, measures.faulty.seconds) == (pytest.approx(7.0), pytest.approx(3.0))


def test_a_chain_that_never_continued_is_a_gap() -> None:
    measures = Measures()
    measures.begin("a", 0.0)
    measures.begin("b", 0.0)
    measures.add("a", 9.95, [9.9])
    assert measures.silent_s(10.0) == 10.0
    measures.finish(10.0)
    assert max(gap.seconds for gap in measures.gaps) == 10.0


def test_a_record_that_waited_through_a_fault_counts_as_during_it() -> None:
    measures = Measures()
    measures.begin("a", 0.0)
    measures.add("a", 0.5, [0.4])
    measures.fault_begins(1.0)
    measures.fault_ends(3.0)
    measures.add("a", 3.5, [0.9, 3.4])
    assert (measures.calm.latencies.count, measures.faulty.latencies.count) == (2, 1)
    assert measures.faulty.latencies.percentile_ms(1.0) == pytest.approx(2_600, rel=0.1)


def test_percentiles_are_at_most_a_tenth_too_high() -> None:
    latencies = LatencyHistogram()
    assert latencies.percentile_ms(0.5) is None
    for number in range(1, 1_001):
        latencies.add(number / 1_000)
    for fraction in (0.5, 0.99, 1.0):
        shown = latencies.percentile_ms(fraction)
        assert shown is not None
        assert 1_000 * fraction <= shown <= 1_100 * fraction


def test_the_timeline_shows_faults_below_the_acknowledgements() -> None:
    lines = timeline([10, 10, 0, 0, 5, 10], [KILL, STOP], 10.0).splitlines()
    assert lines[0] == "acknowledged |██  ▄█    |"
    assert lines[1] == "kill         |  xxx     |"
    assert lines[2] == "stop         |      xx  |"


def test_the_verdict_is_first_and_the_outcome_follows_from_what_was_found() -> None:
    good = ChaosResult("dos chaos x --seed 1", 10.0, measures=measured(), faults=[KILL, STOP])
    assert good.outcome == GOOD
    text = as_markdown(good)
    assert text.startswith("# dos chaos: GOOD\n")
    assert "| 2.0 s | kill | s1 | 2.0 s | yes | 2.5 s | 0.5 s |  |" in text
    assert "| 6.0 s | stop | s1 s2 | 1.0 s | no | 1.0 s | 0.0 s | observed |" in text
    assert "dos chaos x --seed 1" in text
    late = ChaosResult("again", problems=["h1:1 is unavailable"], kept="/evidence")
    assert late.outcome == NOT_RECOVERED
    assert as_markdown(late).splitlines()[4] == "- h1:1 is unavailable"
    lost = ChaosResult("again", verdict=Verdict(lost=1, examples=["lost 7"]), problems=["late"])
    assert lost.outcome == as_json(lost)["outcome"] == VIOLATION
    assert "- lost 7\n- late" in as_markdown(lost)
    assert ChaosResult("again", violations=["LossError"]).outcome == VIOLATION
