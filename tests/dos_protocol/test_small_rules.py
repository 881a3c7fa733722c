"""The small parts at their boundaries: stamps, names, tokens, addresses, errors, and numbers."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import errors, limits
from dos_protocol import messages as m
from dos_protocol.arguments import address_text, is_loopback, refuse_weak, token_in
from dos_protocol.errors import (
    CLOSING,
    VERDICTS,
    CorruptDataError,
    DosError,
    ErrorCode,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
)
from dos_protocol.messages import refused
from dos_protocol.names import check_name, epoch_of_segment, has_one_writer, is_name, parse_id
from dos_protocol.store_record import DiskStamp, decode_witnessed, default_ack_quorum, encode_witnessed
from tests.dos_protocol.strategies import ids, u64


@given(st.dictionaries(ids, st.builds(DiskStamp, u64, ids), max_size=4))
def test_stamps_survive_their_bytes_in_one_order(witnessed: dict[bytes, DiskStamp]) -> None:
    data = encode_witnessed(witnessed)
    assert decode_witnessed(data) == witnessed
    assert data == encode_witnessed(dict(reversed(witnessed.items())))
    assert len(data) == 40 * len(witnessed)


def test_stamps_are_whole_and_one_a_server() -> None:
    one = encode_witnessed({b"s" * 16: DiskStamp(1, b"i" * 16)})
    other = encode_witnessed({b"s" * 16: DiskStamp(2, b"i" * 16)})
    for data in (one[:-1], one + b"\0", b"x"):
        with pytest.raises(ValueError, match="not a multiple of the 40 bytes"):
            decode_witnessed(data)
    for data in (one + one, one + other):
        with pytest.raises(ValueError, match="more than one entry for one server"):
            decode_witnessed(data)


@pytest.mark.parametrize(
    "name", ["a", "0", "a" * 128, "a-", "a.", "a_", "A.0000000000000001.000000000000000f"]
)
def test_names_of_the_grammar_at_its_ends(name: str) -> None:
    assert (check_name(name), is_name(name)) == (name, True)
    assert has_one_writer(name) == (len(name) == 35)
    assert epoch_of_segment(name) == (1 if len(name) == 35 else 0)


def test_what_is_no_name_is_refused_and_shown_cut() -> None:
    assert not any(map(is_name, ("", "a" * 129, "-a", "a\n", "é")))
    with pytest.raises(errors.BadNameError, match=r"'x{40}', 200 long"):
        check_name("x" * 200)
    with pytest.raises(errors.BadNameError, match="a name must be a str, got b'a'"):
        check_name(b"a")  # type: ignore[arg-type]
    for text in ("0" * 30, "0" * 34, " ".join(["00"] * 16)):
        with pytest.raises(ValueError, match="32 hex digits"):
            parse_id(text)


@pytest.mark.parametrize("size", [1, 4096, 4097])
def test_a_token_has_at_most_4096_bytes(size: int) -> None:
    if size <= 4096:
        assert token_in(b" " + b"t" * size + b" \nsecond line", "f") == b"t" * size
    else:
        with pytest.raises(LocalProtocolError, match="at most 4096 bytes, its line has 4097"):
            token_in(b"t" * size, "f")


def test_a_secret_of_16_characters_with_8_distinct_ones_is_strong_enough_and_no_weaker_one_is() -> None:
    refuse_weak(b"abcdefgh" * 2, "f")
    for weak in (b"abcdefghabcdefg", b"abcdefga" * 2, b"abcdefg" * 9, b""):
        with pytest.raises(LocalProtocolError, match="at least 16 and 8 are needed") as refused:
            refuse_weak(weak, "f")
        assert f"{len(weak)} characters, {len(set(weak))} of them distinct" in str(refused.value)


def test_a_file_without_a_token_reports_what_it_has() -> None:
    for data, words in (
        (b"", "an empty file"),
        (b" \ntoken", "a blank first line"),
        (b"\n", "a blank first line"),
    ):
        with pytest.raises(LocalProtocolError, match=words):
            token_in(data, "f")


def test_addresses_are_written_as_clients_write_them() -> None:
    assert (address_text("h", 1), address_text("::1", 2), address_text("1.2.3.4", 3)) == (
        "h:1",
        "[::1]:2",
        "1.2.3.4:3",
    )
    local = {
        "localhost": True,
        "127.0.0.1": True,
        "::1": True,
        "127.9.9.9": True,
        "0.0.0.0": False,
        "h": False,
    }
    assert {host: is_loopback(host) for host in local} == local


@pytest.mark.parametrize(("members", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (16, 9)])
def test_the_usual_quorum_is_a_majority(members: int, quorum: int) -> None:
    assert default_ack_quorum(members) == quorum


# --- errors, numbers ---


def test_errors_keep_their_fields() -> None:
    error = CorruptDataError("file", 7, "this", "that", "do so")
    assert (error.where, error.offset, error.expected, error.found, error.hint) == (
        "file",
        7,
        "this",
        "that",
        "do so",
    )
    assert str(error) == "file at byte 7: expected this, found that (do so)"
    assert str(CorruptDataError("file", 7, "this", "that")) == "file at byte 7: expected this, found that"
    assert (str(DosError("text")), str(DosError("text", remedy="do so"))) == ("text", "text (do so)")
    remote = RemoteProtocolError("text")
    assert (remote.code, remote.request_id, remote.remedy) == (
        ErrorCode.BAD_FRAME, 0, VERDICTS[ErrorCode.BAD_FRAME].remedy,
    )  # fmt: skip
    remote = RemoteProtocolError("text", code=ErrorCode.TOO_LARGE, request_id=5, remedy="do so")
    assert (remote.code, remote.request_id, remote.remedy) == (ErrorCode.TOO_LARGE, 5, "do so")
    plain = RefusedError("text")
    assert (plain.code, plain.actual, plain.record) == (ErrorCode.INTERNAL, 0, b"")
    assert RefusedError("text", remedy="do so").remedy == "do so"
    assert errors.FencedError("text").code is ErrorCode.FENCED
    assert errors.WouldLoseError("text", actual=9).durable == 9


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_refusal_is_of_the_class_for_its_code_and_keeps_the_servers_remedy(code: ErrorCode) -> None:
    error = refused(m.Error(code, "words", "do so", 7, b"r"))
    assert (error.remedy, error.actual, error.record, str(error)) == ("do so", 7, b"r", "words (do so)")
    ours = [cls for cls in RefusedError.__subclasses__() if cls.__module__ == errors.__name__]
    own = {cls.code_of_class: cls for cls in ours}
    assert type(error) is own.get(code, RefusedError)
    unknown = refused(m.Error(9999, "words", "do so", 7, b"r"))
    assert (unknown.code, unknown.remedy, unknown.actual, unknown.record) == (
        ErrorCode.INTERNAL,
        "do so",
        7,
        b"r",
    )


def test_what_ends_a_connection() -> None:
    names = {"BAD_FRAME", "BAD_DIGEST", "TOO_LARGE", "BAD_VERSION", "UNAUTHORISED", "STALE_GENERATION",
             "WRONG_STORE", "NOT_A_MEMBER", "ROLLED_BACK", "TLS_REQUIRED", "INTERNAL"}  # fmt: skip
    assert {code.name for code in CLOSING} == names


def test_numbers_of_the_wire_are_those_of_version_1() -> None:
    """Numbers are never reused or changed: a change here is another protocol."""
    assert [code.value for code in ErrorCode] == list(range(1, 30))
    assert [opcode.value for opcode in m.Opcode] == [*range(1, 15), *range(129, 143), 255]
    assert {name: value for name, value in vars(limits).items() if isinstance(value, int)} == {
        "KIB": 2**10, "MIB": 2**20, "PROTOCOL_VERSION": 1, "frame_header_bytes": 32, "meta_bytes_max": 2**16,
        "payload_bytes_max": 2**20, "digest_block_bytes": 2**16, "name_bytes_max": 128, "id_bytes": 16,
        "text_bytes_max": 1024, "store_record_bytes_max": 2**14, "store_members_max": 16,
        "address_bytes_max": 255, "ping_bytes_max": 4096, "object_info_bytes_max": 154, "entries_max": 6000,
        "get_wait_ms_max": 60_000,
        "epoch_jump_max": 2**20, "object_bytes_max": 2**40, "u64_max": 2**64 - 1,
    }  # fmt: skip


def test_messages_have_these_defaults() -> None:
    """A field that is left out is on the wire all the same, with its default."""
    no_id, found = bytes(16), {}
    for cls in get_args(m.Message):
        defaults: Any = cls.__struct_defaults__
        if defaults:
            found[cls.__name__] = defaults
    assert found == {
        "Hello": (1, b"", no_id, 0, ""), "Welcome": (b"", 0, no_id, False, b"", False),
        "ChangeDirectory": (False, 0, no_id), "DirectoryOpened": ((),), "Get": (0,), "List": ("", "", 1000),
        "Listing": ((), False), "Stat": (2**64 - 1,), "Ping": (b"",), "Pong": (b"",),
        "Stamp": (0, no_id), "Witness": (0, no_id), "ScrubRequest": (False, 0), "Error": ("", "", 0, b""),
    }  # fmt: skip
    assert m.ObjectInfo.__struct_defaults__ == (0, 0, 0, False, False, False)
    assert m.NO_DIGEST == 2**64 - 1
