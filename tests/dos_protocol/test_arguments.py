"""Sizes, rates and times as options of the command line."""

from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.arguments import (
    TOKEN_BYTES_MAX,
    address_text,
    is_loopback,
    parse_bytes,
    parse_listen,
    parse_rate,
    parse_span,
    token_in,
)
from dos_protocol.errors import LocalProtocolError
from dos_protocol.names import check_id
from dos_server.core.files.records import ClaimRecord, ObjectMark, encode_claim, encode_identity, encode_mark
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


# --- What `--listen` takes, who reaches an address, and how one is written ---------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9999", "127.0.0.1", 9999),
        ("[::1]:0", "::1", 0),
        ("box.example:65535", "box.example", 65535),
    ],
)
def test_a_host_and_a_port_are_taken_apart_and_put_together(text: str, host: str, port: int) -> None:
    assert parse_listen(text) == (host, port)
    assert address_text(host, port) == text


@pytest.mark.parametrize("text", ["", "9999", ":9999", "h:", "h:x", "h:65536", "h:-1", "h:٣"])
def test_what_is_no_address_is_refused_with_what_it_takes(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT with a port from 0 to 65535"):
        parse_listen(text)


def test_only_loopback_addresses_and_localhost_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "box.example", "localhost.example")))


# --- Values of the wrong size are refused where they are packed: `struct` cuts or fills them up in ... -----


ANY = {
    "version": 1,
    "store_id": b"s" * 16,
    "server_id": b"s" * 16,
    "writer_id": b"w" * 16,
    "generation": 1,
    "payload_bytes_max": 1,
    "in_flight_bytes_max": 1,
    "entries_max": 1,
    "store_record": b"",
    "directory": "d",
    "claim": True,
    "epoch": 1,
    "entries": (),
    "number": 1,
    "stamp_id": b"i" * 16,
}
WRONG_IDS = [b"", b"w" * 15, b"w" * 17, b"the writer's id-A!!"]


@pytest.mark.parametrize("wrong", WRONG_IDS)
def test_no_message_cuts_an_id_or_fills_it_up(wrong: bytes) -> None:
    """Every field of the table that is an id, so that a new one is covered too."""
    seen = 0
    for row in m.TABLE.values():
        for field, _ in [one for one in row.fixed if one[1] == "16s"]:
            values = {**ANY, field: wrong}
            message = row.cls(**{name: values[name] for name in row.cls.__annotations__ if name in values})
            with pytest.raises(LocalProtocolError, match="exactly 16 bytes"):
                m.encode(message)
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("wrong", [*WRONG_IDS, "w" * 16, None])
def test_an_id_is_bytes_of_its_length(wrong: object) -> None:
    with pytest.raises(LocalProtocolError):
        check_id(wrong, "writer_id")  # type: ignore[arg-type]
    assert check_id(b"w" * 16, "writer_id") == b"w" * 16


@pytest.mark.parametrize("wrong", WRONG_IDS)
def test_no_record_of_a_data_directory_cuts_an_id_or_a_name(wrong: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        encode_claim(ClaimRecord(1, wrong))
    with pytest.raises(LocalProtocolError):
        encode_identity(wrong)


@pytest.mark.parametrize("name", ["", "n" * 129, "a\0b", ".a"])
def test_no_mark_cuts_a_name(name: str) -> None:
    with pytest.raises(Exception, match="a name must match"):
        encode_mark(ObjectMark(name, 0))


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\nsecret\n", b"\r\nsecret", b"t" * (TOKEN_BYTES_MAX + 1)])
def test_a_token_file_without_a_token_is_an_error_and_not_the_empty_token(data: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="token file /etc/t"):
        token_in(data, "/etc/t")


@pytest.mark.parametrize("data", [b"secret", b"secret\n", b" secret \r\nmore\n", b"secret\n\n"])
def test_a_token_is_the_first_line_without_the_space_around_it(data: bytes) -> None:
    assert token_in(data, "t") == b"secret"
