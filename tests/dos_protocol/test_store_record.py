"""The store record: round trip, the specification, and every damage named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.digests import digest64
from dos_protocol.errors import CorruptDataError
from dos_protocol.store_record import (
    Member,
    StoreRecord,
    claims_needed,
    confirmations_needed,
    decode_store_record,
    encode_store_record,
)
from tests.dos_protocol.strategies import store_records
from tests.specifications.wire import StoreRecordSpec

A, B = Member(b"a" * 16, "a:1"), Member(b"b" * 16, "b:1")


@given(record=store_records())
def test_a_record_survives_its_bytes_and_the_specification_reads_them(record: StoreRecord) -> None:
    data = encode_store_record(record)
    assert decode_store_record(data) == record
    parsed = StoreRecordSpec.parse(data).body.value
    assert (parsed.store_id, parsed.generation, parsed.ack_quorum) == (
        record.store_id,
        record.generation,
        record.ack_quorum,
    )
    assert [(one.server_id, one.address, one.state) for one in parsed.members] == [
        (one.server_id, one.address, {"in": 1, "joining": 2, "adding": 3, "spare": 4}[one.state])
        for one in (*record.members, *record.spares)
    ]


@given(record=store_records(), data=st.data())
def test_bytes_of_another_program_with_the_right_digest_are_a_record_or_refused(
    record: StoreRecord, data: st.DataObject
) -> None:
    good = encode_store_record(record)
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    for body in (bytes(bad[:-8]), good[: data.draw(st.integers(0, len(good) - 8))], good[:-8] + b"\0"):
        sealed = body + digest64(body).to_bytes(8, "big")
        try:
            found = decode_store_record(sealed)
        except CorruptDataError:
            continue
        assert encode_store_record(found) == sealed


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (StoreRecord(bytes(16), 1, 1, (A,)), "store id"),
        (StoreRecord(b"s" * 16, 0, 1, (A,)), "generations begin at 1"),
        (StoreRecord(b"s" * 16, 1, 1, ()), "1 to 16 members"),
        (StoreRecord(b"s" * 16, 1, 1, (A, Member(A.server_id, "c:1"))), "distinct identities"),
        (StoreRecord(b"s" * 16, 1, 1, (A, Member(bytes(16), "c:1"))), "not all zero"),
        (StoreRecord(b"s" * 16, 1, 1, (A, Member(b"c" * 15, "c:1"))), "identities of 16 bytes"),
        (StoreRecord(b"s" * 16, 1, 1, (A, Member(b"c" * 16, A.address))), "distinct addresses"),
        (StoreRecord(b"s" * 16, 1, 3, (A, B)), "ack quorum of 3"),
        (StoreRecord(b"s" * 16, 1, 2, (A, Member(b"c" * 16, "c:1", "joining"))), "ack quorum of 2"),
        (StoreRecord(b"s" * 16, 1, 0, (A, B)), "ack quorum of 0"),
    ],
)
def test_a_record_that_breaks_a_rule_has_no_bytes(record: StoreRecord, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode_store_record(record)


@pytest.mark.parametrize("address", ["!", "~", "h" * 255, "!~:1"])
def test_every_visible_character_may_stand_in_an_address(address: str) -> None:
    record = StoreRecord(b"s" * 16, 1, 1, (A, Member(b"c" * 16, address)))
    assert decode_store_record(encode_store_record(record)) == record


@pytest.mark.parametrize("address", ["", "h" * 256, " ", "\x7f", "h 1", "h\x1f", "h\x80", "é:1"])
def test_no_other_character_may_nor_none_nor_too_many(address: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 visible ASCII characters"):
        encode_store_record(StoreRecord(b"s" * 16, 1, 1, (A, Member(b"c" * 16, address))))


def test_what_is_too_short_is_refused_though_its_digest_fits() -> None:
    whole = encode_store_record(StoreRecord(b"s" * 16, 1, 1, (A, B)))[:-8]
    for size in range(len(whole)):
        for body in (bytes(size), whole[:size]):
            with pytest.raises(CorruptDataError):
                decode_store_record(body + digest64(body).to_bytes(8, "big"))


@given(record=store_records())
def test_a_server_is_found_by_its_own_identity_and_address_among_the_members_alone(
    record: StoreRecord,
) -> None:
    for one in record.members:
        assert (
            record.member(one.server_id)
            is record.find(one.address)
            is record.find(one.server_id.hex())
            is one
        )
        assert record.names(one.server_id)
    for one in record.spares:
        assert record.member(one.server_id) is record.find(one.address) is None
        assert record.names(one.server_id)
        assert one not in record.spares_beside((Member(one.server_id, "other:1"),))
        assert one not in record.spares_beside((Member(b"o" * 16, one.address),))
    assert record.spares_beside(record.members) == record.spares
    assert not record.names(bytes(16))
    assert record.member(bytes(16)) is record.find("") is None
    assert record.voters == tuple(one for one in record.members if one.state == "in")


@pytest.mark.parametrize(
    ("n", "qa", "claims", "confirmations"),
    [(1, 1, 1, 1), (2, 2, 2, 2), (3, 2, 2, 2), (5, 3, 3, 3), (3, 3, 3, 2), (3, 1, 3, 3)],
)
def test_the_counts_follow_the_rules(n: int, qa: int, claims: int, confirmations: int) -> None:
    assert claims_needed(n, qa) == claims
    assert confirmations_needed(n, qa) == confirmations
    assert 2 * claims > n
