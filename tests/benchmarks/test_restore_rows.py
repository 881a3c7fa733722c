"""The rows of the benchmark of restores and forks, and their section."""

from restore_page import RESTORE, section_of
from restore_rows import restore_rows


def test_the_rows_are_medians_and_ratios() -> None:
    seconds = [{"seconds": value} for value in (1.2, 1.0, 5.0)]
    found = {
        "keys": 1_000_000,
        "reset": [{"seconds": 1.0}] * 3,
        "restore": seconds,
        "fork": [0.5, 0.7, 0.6],
        "fork_start": [2.0, 3.0, 4.0],
        "start": [2.0, 2.0, 2.0],
    }
    text = section_of(RESTORE, "Restores and forks", restore_rows(found), 3)
    assert "| 1,200 ms | a reset by hand: 1,000 ms; 1.20 times | 1.2 times at most |" in text
    assert "| fork of a running region; 1,000,000 keys | 600 ms |" in text
    assert "| 3,000 ms | start of the original: 2,000 ms; 1.50 times |" in text
    assert text.startswith(RESTORE.begin)
    assert "medians of 3 alternating rounds" in text
