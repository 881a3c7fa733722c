"""The port with the metrics of a region, when another driver of this process continues the region."""

import socket

import pytest

from dataflow.handle import RegionMonitor
from tests.support.http import fetch_url


@pytest.fixture
def listen() -> str:
    """An address whose port nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def metrics_of(monitor: RegionMonitor) -> str:
    code, text = fetch_url(f"http://{monitor.address}/metrics")
    assert code == 200
    return text


def test_the_only_port_passes_to_the_next_driver_when_the_present_one_closes_it(listen: str) -> None:
    present = RegionMonitor("region", listen)
    assert "dos_region_" in metrics_of(present)
    given_up = RegionMonitor("region", listen)
    given_up.close()
    assert "dos_region_" in metrics_of(present), "it was not handed over"
    following = RegionMonitor("region", listen)
    assert following.address == listen
    assert following._server is None
    present.close()
    assert following._server is not None
    assert "dos_region_" in metrics_of(following)
    after = RegionMonitor("region", listen)
    following.close()
    assert "dos_region_" in metrics_of(after)
    after.close()
    with pytest.raises(OSError, match="refused"):
        metrics_of(after)


@pytest.mark.parametrize("other", ["another region", "region"])
def test_only_the_same_region_waits_for_a_port(other: str, listen: str) -> None:
    """Of another region, or of a range of ports, nothing is promised."""
    number = listen.rpartition(":")[2]
    many = f"127.0.0.1:{number}-{number}" if other == "another region" else "127.0.0.1:0"
    first = RegionMonitor("region", many)
    second = RegionMonitor(other, many)
    assert (second._server is None) == (second.address == "") == (other != "region")
    second.close()
    first.close()
