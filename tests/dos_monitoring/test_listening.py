"""Where figures are served, and how a log is written: what users write, and what is refused."""

import pytest

from dos_monitoring import LogChoice, MetricsListen, parse_log_choice, parse_metrics_listen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("127.0.0.1:9400", MetricsListen("127.0.0.1", (9400,))),
        ("0.0.0.0:0", MetricsListen("0.0.0.0", (0,))),
        ("[::1]:9400-9402", MetricsListen("::1", (9400, 9401, 9402))),
        ("h1:65535-65535", MetricsListen("h1", (65535,))),
    ],
)
def test_a_host_and_ports(text: str, expected: MetricsListen | None) -> None:
    assert parse_metrics_listen(text) == expected


@pytest.mark.parametrize(
    "text",
    ["9400", ":9400", "h:", "h:x", "h:1-", "h:-1", "h:2-1", "h:0-9", "h:65536", "h:1-65536", "h:1-2-3"],
)
def test_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT or HOST:FIRST-LAST"):
        parse_metrics_listen(text)


def test_a_wildcard_is_reached_at_the_hosts_own_address() -> None:
    assert MetricsListen("0.0.0.0", (1,)).reached_at(9400, "10.0.0.7") == "10.0.0.7:9400"
    assert MetricsListen("::", (1,)).reached_at(9400, "fe80::1") == "[fe80::1]:9400"
    assert MetricsListen("127.0.0.1", (1,)).reached_at(9400, "10.0.0.7") == "127.0.0.1:9400"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("json", LogChoice(as_json=True, level="WARNING")),
        ("json:info", LogChoice(as_json=True, level="INFO")),
        ("text:debug", LogChoice(as_json=False, level="DEBUG")),
    ],
)
def test_a_format_and_a_level(text: str, expected: LogChoice | None) -> None:
    assert parse_log_choice(text) == expected
    assert LogChoice() == (False, "WARNING"), "without a choice: text, from warnings on"


@pytest.mark.parametrize("text", ["JSON", "json:", "json:INFO", "xml", ":info", "json:info:"])
def test_another_format_or_level_is_refused_by_the_name_of_the_variable(text: str) -> None:
    with pytest.raises(ValueError, match="DOS_LOG is json or text"):
        parse_log_choice(text)
