"""Values of the wrong size are refused where they are packed: `struct` cuts or fills them up in silence."""

import pytest

from dos_protocol import messages as m
from dos_protocol.arguments import TOKEN_BYTES_MAX, token_in
from dos_protocol.errors import LocalProtocolError
from dos_protocol.names import check_id
from dos_server.core.files.records import ClaimRecord, ObjectMark, encode_claim, encode_identity, encode_mark

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
