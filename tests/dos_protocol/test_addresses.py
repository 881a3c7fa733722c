"""What `--listen` takes, who reaches an address, and how one is written."""

import pytest

from dos_protocol.arguments import address_text, is_loopback, parse_listen


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
