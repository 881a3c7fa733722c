"""URLs: what is accepted, what is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.errors import BadUrlError
from dos_client.urls import DosUrl, loopback_among, parse_address, parse_url, split_address
from dos_protocol.errors import BadNameError


def test_the_default_port_is_put_in() -> None:
    assert parse_url("dos://h1,h2:7/app.coord/manifest") == DosUrl(
        ("h1:9999", "h2:7"), "app.coord", "manifest"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dos://h", DosUrl(("h:9999",))),
        ("dos://h/", DosUrl(("h:9999",))),
        ("dos://h/d/", DosUrl(("h:9999",), "d")),
        ("dos://127.0.0.1:1/d", DosUrl(("127.0.0.1:1",), "d")),
        ("dos://[::1]:5,[fe80::1%eth0]", DosUrl(("[::1]:5", "[fe80::1%eth0]:9999"))),
        ("dos://HOST:80", DosUrl(("host:80",))),
    ],
)
def test_forms_that_are_urls(text: str, expected: DosUrl) -> None:
    assert parse_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "dos:/h", "http://h", "dos://", "dos:///d", "dos://h,", "dos://h,,g", "dos://h:", "dos://h:0"),
        *(
            "dos://h:65536",
            "dos://h:9x",
            "dos://h:-1",
            "dos://h:1:2",
            "dos://a b",
            "dos://h:1,h:1",
            "dos://::1",
        ),
        *("dos://h/d/o/x", "dos://[::1", "dos://h\n", "dos://h:٣", "dos://-h", "dos://h-"),
        "dos://" + ",".join(f"h{i}" for i in range(17)),
    ],
)
def test_what_is_no_url_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadUrlError):
        parse_url(text)


@pytest.mark.parametrize(
    "text", ["dos://h//o", "dos://h/../x", "dos://h/d/.x", "dos://h/~", "dos://h/d/\u2024\u2024"]
)
def test_names_in_a_url_keep_the_grammar(text: str) -> None:
    with pytest.raises(BadNameError):
        parse_url(text)


def test_the_same_server_with_and_without_its_default_port_is_named_twice() -> None:
    with pytest.raises(BadUrlError, match="names a server twice"):
        parse_url("dos://h,H:9999")


@given(st.text(max_size=80))
def test_any_text_is_a_url_or_one_of_two_errors(text: str) -> None:
    try:
        parsed = parse_url("dos://" + text)
    except (BadUrlError, BadNameError):
        return
    assert parse_url(str(parsed)) == parsed


def test_an_address_splits_into_what_a_socket_wants() -> None:
    assert split_address(parse_address("[::1]:5")) == ("::1", 5)
    assert split_address(parse_address("h")) == ("h", 9999)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0::0]"])
def test_a_wildcard_is_no_address_of_a_server(host: str) -> None:
    with pytest.raises(BadUrlError, match="every address of a server's own machine") as refused:
        parse_url(f"dos://h1,{host}:9999")
    assert "at which other machines reach it" in str(refused.value)


@pytest.mark.parametrize(
    ("addresses", "alone"),
    [
        (["h1:1", "10.0.0.1:1"], ""),
        (["127.0.0.1:1", "localhost:2", "[::1]:3"], ""),
        (["h1:1", "127.0.0.2:1"], "127.0.0.2:1"),
        (["[::1]:1", "10.0.0.1:1"], "[::1]:1"),
        ([], ""),
    ],
)
def test_members_on_loopback_are_together(addresses: list[str], alone: str) -> None:
    assert loopback_among(addresses) == alone
