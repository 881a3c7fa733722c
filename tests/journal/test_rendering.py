"""Records and faults as lines: every byte is visible, a cut is marked, and a JSON line has all fields."""

import json

import pytest

from dos_protocol.errors import CorruptDataError
from journal.core.errors import (
    ChainError,
    CorruptRecordError,
    LostBytesError,
    TornRecordError,
    UnknownRecordError,
)
from journal.core.inspection import Located, kind_of
from journal.core.record import Record
from journal.core.rendering import as_json, as_original, as_text, fault_fields, fault_text
from journal.ops import Op

SHOWN = 64


def located(*strings: bytes, flags: int = 0) -> Located:
    return Located("J", 100, 140, 1, Record(Op.WRITE, 2, (10,), strings, flags))


def test_a_line_is_what_the_original_wrote_with_place_and_name() -> None:
    assert (
        as_text(located(b"/w/a", b"0\n"))
        == "100 WRITE version=1 op=1 tag=2 ints=[10] strings=['/w/a', '0\\n']"
    )
    assert as_original(located(b"\x1b[2J\xff")) == "version=1 op=1 tag=2 ints=[10] strings=['\\x1b[2J\\xff']"
    assert as_original(located(flags=0x12)) == "version=1 op=1 tag=2 flags=0x0012 ints=[10] strings=[]"


@pytest.mark.parametrize("size", [0, 1, SHOWN - 1, SHOWN, SHOWN + 1, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_of_a_long_string_the_beginning_is_visible_and_how_long_it_is(size: int, full: bool) -> None:
    cut = size > SHOWN and not full
    shown = "a" * (SHOWN if cut else size)
    expected = f"'{shown}'" + (f"...[{size} bytes]" if cut else "")
    assert as_text(located(b"a" * size), full=full).endswith(f" strings=[{expected}]")
    assert as_original(located(b"a" * size)).endswith(f" strings=['{'a' * size}']")
    (text,) = json.loads(as_json(located(b"a" * size), full=full))["strings"]
    assert text == {"bytes": size, "text": shown} | ({"cut": True} if cut else {})
    (binary,) = json.loads(as_json(located(b"\xff" * size), full=full))["strings"]
    if size:
        assert binary == {"bytes": size, "hex": "ff" * len(shown)} | ({"cut": True} if cut else {})


def test_a_character_that_the_cut_divides_is_left_out() -> None:
    (one,) = json.loads(as_json(located(b"a" * (SHOWN - 1) + "é".encode())))["strings"]
    assert one == {"bytes": SHOWN + 1, "text": "a" * (SHOWN - 1), "cut": True}


def test_a_json_line_has_every_field() -> None:
    assert json.loads(as_json(located(b"p", flags=5))) == {
        "segment": "J", "offset": 100, "end": 140, "version": 1, "op": 1, "name": "WRITE", "tag": 2,
        "flags": 5, "ints": [10], "strings": [{"bytes": 1, "text": "p"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TornRecordError("J", 5, "a record", "the end", "why"), "torn"),
        (UnknownRecordError("J", 5, "a record", "the end", "why"), "version"),
        (ChainError("J", 5, "a record", "the end", "why"), "chain"),
        (CorruptRecordError("J", 5, "a record", "the end", "why"), "corrupt"),
    ],
)
def test_a_fault_in_bytes_is_told_with_both_offsets(fault: CorruptDataError, kind: str) -> None:
    assert kind_of(fault) == kind
    assert fault_fields(fault, 1000) == {
        "kind": kind, "segment": "J", "offset": 5, "logical_offset": 1005,
        "expected": "a record", "found": "the end", "hint": "why",
    }  # fmt: skip
    assert fault_text(fault, 1000).splitlines()[:3] == [
        f"kind            {kind}", "segment         J", "offset          5",
    ]  # fmt: skip
    assert "logical offset  1005" in fault_text(fault, 1000).splitlines()


def test_of_another_fault_the_problem_and_the_remedy_are_reported_and_nothing_empty() -> None:
    fault = LostBytesError("bytes are gone", remedy="get them back")
    assert fault_fields(fault) == {"kind": "lost", "problem": "bytes are gone", "hint": "get them back"}
    assert len(fault_text(CorruptRecordError("J", 0, "x", "y", "")).splitlines()) == 6
