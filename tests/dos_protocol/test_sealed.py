"""Sealed records: one layout each, from which bytes, checks, errors and the specification come."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.sealed import RESERVED, SealedLayout
from dos_protocol.store_record import STORE_RECORD
from dos_server.core.files.log_replay import LIFE
from dos_server.core.files.records import CLAIM
from dos_server.core.requests.stamps import STAMPS_LAYOUT, WITNESSED_LAYOUT
from tests.specifications.sealed import specification_of
from tests.support.protocol_tables import SEALED

LAYOUTS = {one.what: one for one in SEALED}
"""What protocol.md has is tested here."""
_BITS = {"B": 8, "H": 16, "Q": 64}


@st.composite
def records(draw: Any) -> tuple[SealedLayout, list[int | bytes], bytes]:
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    values = [
        draw(st.binary(min_size=16, max_size=16))
        if field.code == "16s"
        else draw(st.integers(0, (1 << _BITS[field.code]) - 1 if field.most is None else field.most))
        for field in layout.fields
        if field is not RESERVED
    ]
    return layout, values, draw(st.binary(max_size=40)) if layout.rest else b""


@given(records())
def test_what_is_sealed_is_opened_and_has_the_bytes_of_the_specification(case: Any) -> None:
    layout, values, rest = case
    data = layout.seal(*values, rest=rest)
    assert layout.open(data, "x") == (tuple(values), rest)
    names = [field.name for field in layout.fields if field is not RESERVED]
    built = specification_of(layout).build({**dict(zip(names, values, strict=True)), "rest": rest})
    assert data == built + digest64(built).to_bytes(8, "big")
    assert len(data) == layout.bytes_min + len(rest)
    assert len(built) == layout.rest_at + len(rest)


@given(records(), st.data())
def test_every_damage_is_named_and_is_never_another_record(case: Any, data: Any) -> None:
    layout, values, rest = case
    whole = layout.seal(*values, rest=rest)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (bytes(flipped), whole[:cut], whole + b"\0"):
        with pytest.raises(CorruptDataError) as caught:
            layout.open(damaged, "place")
        assert caught.value.where == "place"


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("at", "value"), [(0, 0xFF), (2, 2), (3, 9)])
def test_another_magic_or_version_or_a_field_above_its_maximum_asks_for_a_newer_release(
    name: str, at: int, value: int
) -> None:
    layout = LAYOUTS[name]
    values = [bytes(16) if one.code == "16s" else 0 for one in layout.fields if one is not RESERVED]
    body = bytearray(layout.seal(*values)[:-8])
    body[at] = value
    with pytest.raises(CorruptDataError, match=f"expected {name} version 1") as caught:
        layout.open(bytes(body) + digest64(body).to_bytes(8, "big"), "x")
    assert caught.value.remedy == "use a newer release"


def test_a_flipped_version_is_damage_and_not_a_newer_release() -> None:
    data = bytearray(CLAIM.seal(1, b"w" * 16))
    data[2] = 2
    with pytest.raises(CorruptDataError, match="expected digest"):
        CLAIM.open(bytes(data), "x")


def test_an_id_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="writer id must be exactly 16 bytes"):
        CLAIM.seal(1, b"w" * 15)
    with pytest.raises(LocalProtocolError, match="key must be exactly 16 bytes"):
        LIFE.seal(1, 1, b"k" * 17)


GOLDEN = {
    "claim": (CLAIM.seal(7, b"w" * 16), "d04c0100" + "0000000000000007" + "77" * 16),
    "life": (LIFE.seal(1, 5, b"k" * 16), "d04e0101" + "0000000000000005" + "6b" * 16),
    "stamps": (
        STAMPS_LAYOUT.seal(1, b"k" * 16, 0, bytes(16), 3, 1, rest=b"a" * 16),
        "d0480101" + "6b" * 16 + "00" * 24 + "0000000000000003" + "0001" + "61" * 16,
    ),
    "witnessed": (WITNESSED_LAYOUT.seal(rest=b"o" * 16), "d0570100" + "6f" * 16),
    "store record": (STORE_RECORD.seal(b"s" * 16, 1, 2, 3), "d0530100" + "73" * 16 + "00" * 7 + "010203"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_are_these(name: str) -> None:
    data, golden = GOLDEN[name]
    assert data[:-8].hex() == golden
    assert data[-8:] == digest64(data[:-8]).to_bytes(8, "big")


def test_errors_name_the_record_and_what_to_do() -> None:
    with pytest.raises(CorruptDataError, match=r"^x at byte 0: expected a claim of 36 bytes, found 3 b"):
        CLAIM.open(b"abc", "x")
    with pytest.raises(CorruptDataError, match="expected a witnessed of at least 12 bytes, found 3 bytes"):
        WITNESSED_LAYOUT.open(b"abc", "x")
