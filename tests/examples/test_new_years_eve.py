"""The story of the original service runs as its article tells it."""

import pytest

from examples.new_years_eve import main


@pytest.mark.process
def test_after_the_fire_another_machine_knows_the_peers_at_midnight(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main() == "peers as of 00:00: w0, w1, w2, w3, w5\n"
    told = capfd.readouterr().out
    assert "machine 7 has every byte that machine 3 had" in told
    assert "3 files as of offset" in told
