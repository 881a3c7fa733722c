"""The rows about predicted recoveries."""

from typing import Any

import recovery_page
from recovery_rows import recovery_row


def round_of(seconds: float, predicted: float) -> dict[str, Any]:
    parts = {
        "launchSeconds": 0.1,
        "claimSeconds": 0.05,
        "stateSeconds": predicted - 0.2,
        "replaySeconds": 0.05,
    }
    return {"seconds": seconds, "predicted": {"seconds": predicted, "stateBytes": 24_000_000, **parts}}


def test_a_row_has_the_medians_of_its_rounds_and_their_ratio() -> None:
    rounds = [round_of(1.0, 1.2), round_of(2.0, 1.0), round_of(9.0, 5.0)]
    row = recovery_row({"keys": 1_000_000, "output_mb": 1000.0, "rounds": rounds})
    assert row.what == "1,000,000 keys, 24 MB to restore by the larger worker; 1,000 MB of output"
    assert row.figure == "2,000 ms"
    parts = "launch 100, claim 50, state 1,000, replay 50"
    assert row.beside == f"1,200 ms ({parts}), 0.60 times the measured time"
    section = recovery_page.section_of([row], 3)
    assert section.startswith("<!-- recovery: written by ./run bench recovery -->\n## Predicted and measured")
    assert f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" in section
    assert "medians of 3 kills" in section
