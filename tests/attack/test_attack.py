"""A part of `./run attack`, small and short: an honest client is served while others attack.

Figures are not asserted here: a busy machine has its own. What is: nobody waits for as long as an attack
lasts, memory stays under its limit, and afterwards all is as before.
"""

from pathlib import Path

import pytest

from tests.attack.crowds import pumps
from tests.attack.table import ATTACKS
from tests.attack.trial import Limits, Result, attempt

pytestmark = pytest.mark.process

SHORT = {"frames-begun": 0.3, "list-directories": 0.2, "get-tiny-extents": 0.1}
"""By attack, its scale here."""
SECONDS = 2.5
AT_MOST = Limits(p99_ms=1_000.0, resident_mb=150.0)


@pytest.mark.parametrize("name", SHORT)
def test_an_honest_client_is_served_during_an_attack_and_after_it(tmp_path: Path, name: str) -> None:
    # EVIDENCE-OF: P-9, P-10
    result = attempt(name, tmp_path, seconds=SECONDS, scale=SHORT[name], limits=AT_MOST)
    assert result.held, result.faults


def test_every_attack_has_a_crowd() -> None:
    assert set(ATTACKS) == {*pumps(), "garbage"}


def test_a_result_names_the_reason_it_did_not_hold() -> None:
    assert Result("x", 1.0).held
    assert Result("x", 1.0, faults=["no ping in 1 s"]).as_json()["held"] is False
