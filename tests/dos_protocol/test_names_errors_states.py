"""Names, errors, session states: the small tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import errors
from dos_protocol.errors import CLOSING, VERDICTS, BadNameError, ErrorCode, FencedError, LocalProtocolError
from dos_protocol.messages import SESSION_TABLE, Error, SessionEvent, SessionState, diagram, refused, step
from dos_protocol.names import check_name, id_text, parse_id, printable
from tests.dos_protocol.strategies import good_names

HOSTILE = [
    "",
    ".",
    "..",
    "a/../b",
    "/etc/passwd",
    "//",
    "~",
    "a\\b",
    "%2e%2e",
    "..\u2024",
    "\uff0f",
    "\u202eabc",
    "-rf",
]
HOSTILE += [".tmp", ".claim", "a b", "a\0", "a\n", "\n", "é", "x" * 129, "_a", "a:b", "a\r", "\uff11"]


@given(name=good_names)
def test_names_of_the_grammar_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_and_shown_escaped(name: str) -> None:
    with pytest.raises(BadNameError) as caught:
        check_name(name)
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


@given(text=st.text(st.characters() | st.sampled_from("a\n\x1b\x7f\u202e")))
def test_a_foreign_text_is_shown_as_it_is_but_for_what_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == "".join(one if one.isprintable() else ascii(one).strip("'") for one in text)
    assert printable("línea\r\n\x1b[2J 行") == "línea\\r\\n\\x1b[2J 行"


def test_ids_are_32_hex_digits() -> None:
    assert parse_id(id_text(bytes(range(16)))) == bytes(range(16))
    for text in ("", "00", "zz" * 16, "00" * 17, " " + "00" * 16):
        with pytest.raises(ValueError, match=r"id is 32 hex|non-hexadecimal"):
            parse_id(text)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_verdict_and_an_exception_that_carries_it(code: ErrorCode) -> None:
    assert VERDICTS[code].remedy
    error = refused(Error(code, "words", "", 7, b"record"))
    assert (error.code, error.actual, error.record) == (code, 7, b"record")
    assert VERDICTS[code].remedy in str(error)


def test_a_code_from_a_newer_server_is_still_an_error_one_can_catch() -> None:
    error = refused(Error(9999, "new trouble"))
    assert type(error) is errors.RefusedError
    assert "9999" in str(error)


def test_fenced_names_the_epoch_held() -> None:
    error = refused(Error(ErrorCode.FENCED, "older", "", 12))
    assert isinstance(error, FencedError)
    assert error.epoch_held == 12
    assert ErrorCode.FENCED not in CLOSING


@given(state=st.sampled_from(SessionState), event=st.sampled_from(SessionEvent))
def test_a_session_steps_by_the_table_or_refuses(state: SessionState, event: SessionEvent) -> None:
    if event in SESSION_TABLE[state]:
        assert step(state, event) in SessionState
    else:
        with pytest.raises(LocalProtocolError, match="is not valid for a session in state"):
            step(state, event)


def test_every_state_is_reached_and_every_state_ends() -> None:
    reached = {SessionState.NEW} | {after for row in SESSION_TABLE.values() for after in row.values()}
    assert reached == set(SessionState)
    assert all(
        SessionEvent.ENDED in row for state, row in SESSION_TABLE.items() if state is not SessionState.CLOSED
    )
    assert "NEW --> READY" in diagram()
