"""Counters of dropped rows: merged over workers, and stated as text."""

from checkpoint.core.progress import dropped_rows, dropped_text, end_text, late_by_text, merge_counters


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
