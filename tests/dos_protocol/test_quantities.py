"""Sizes, rates and times as options of the command line."""

from pathlib import Path

import pytest

from dos_protocol.arguments import parse_bytes, parse_rate, parse_span
from tests.dos_server.fsck.data_directories import dos


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("8MB/s", 8_000_000),
        ("0", 0),
        ("512KiB/s", 524_288),
        ("1.5 GB", 1_500_000_000),
        ("100", 100),
        ("7b", 7),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


def test_every_unit_is_the_power_that_its_name_says() -> None:
    powers = {f"{prefix}B": 1000**n for n, prefix in enumerate(("", "k", "M", "G", "T"))}
    powers |= {f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)}
    for unit, bytes_per_unit in powers.items():
        assert parse_rate(f"3{unit}/s") == parse_bytes(f"3 {unit.lower()}") == 3 * bytes_per_unit


@pytest.mark.parametrize("text", ["", "fast", "-1MB/s", "8MB/h", "nan", "1e9", "8XB/s", "9999999999", "٣MB"])
def test_other_rates_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 8MB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("90m", 5_400), ("0.5", 0.5), ("7d", 604_800)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "1y", "inf", "1e3"])
def test_other_times_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 24h"):
        parse_span(text)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [("--scrub-rate", "fast", "for example 8MB/s"), ("--scrub-every", "soon", "for example 24h")],
)
def test_a_rate_or_time_that_is_none_is_refused(tmp_path: Path, option: str, value: str, why: str) -> None:
    refused = dos("serve", "--data", str(tmp_path / "data"), option, value)
    assert refused.returncode == 2
    assert why in refused.stderr
    assert not (tmp_path / "data").exists()
