"""Each rule of the layouts at its boundary: metas, entries, frames."""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dos_protocol import errors, limits
from dos_protocol import messages as m
from dos_protocol.arguments import address_text, is_loopback, refuse_weak, token_in
from dos_protocol.errors import (
    CLOSING,
    VERDICTS,
    BadNameError,
    CorruptDataError,
    DosError,
    ErrorCode,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
)
from dos_protocol.frames import Frame, FrameDecoder, encode_frame, frame_head
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from dos_protocol.messages import SESSION_TABLE, SessionEvent, SessionState, diagram, refused, step
from dos_protocol.names import (
    check_id,
    check_name,
    epoch_of_segment,
    has_one_writer,
    id_text,
    is_name,
    parse_id,
    printable,
)
from dos_protocol.store_record import DiskStamp, decode_witnessed, default_ack_quorum, encode_witnessed
from tests.dos_protocol.strategies import ids, u64

INFO = m.ObjectInfo("a", 3, 2, 1)
SAMPLES: dict[m.Opcode, m.Message] = {
    m.Opcode(m.encode(one).opcode): one
    for one in (
        m.Hello(1, b"t", b"s" * 16, 2, "c"), m.ChangeDirectory("d", True, 2, b"w" * 16),
        m.Append("a", 1, 2, b"p"), m.Get("a", 1, 2, 3), m.List("a", "b", 3), m.Stat("a", 4), m.Delete("a"),
        m.Configure(b"r"), m.Ping(b"p"),
        m.Quit(), m.RepairChunk("a", 1, 2, 3, 4, 5, True, b"p"), m.Stamp(1, b"i" * 16),
        m.Witness(b"s" * 16, 1, b"i" * 16, 2, b"j" * 16), m.Welcome(1, b"s" * 16, 2, 3, 4, b"r"),
        m.DirectoryOpened(1, b"w" * 16, (INFO,)), m.DurabilityAck("a", 2, 1), m.Data("a", 1, 2, b"p"),
        m.Listing((INFO,), True), m.StatResult(INFO, 1, 2), m.Deleted("a"), m.Configured(1),
        m.Pong(b"p"), m.Bye(),
        m.RepairAck("a", 1, True), m.Stamped(1, b"i" * 16), m.Witnessed(b"s" * 16, 1, b"i" * 16),
        m.ScrubRequest(True, 1), m.ScrubProgress(1, 2, 3, 4, 5),
        m.Error(13, "m", "r", 5, b"x"),
    )
}  # fmt: skip
"""One message of each kind."""
EACH = pytest.mark.parametrize("opcode", list(m.Opcode), ids=lambda opcode: opcode.name)


def refusal(frame: Frame) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        m.decode(frame)
    assert caught.value.request_id == frame.request_id
    return caught.value


# --- metas ---


@EACH
def test_a_meta_is_exactly_as_its_row_says(opcode: m.Opcode) -> None:
    frame = m.encode(SAMPLES[opcode], 7)
    assert m.decode(frame) == SAMPLES[opcode]
    for meta in [frame.meta + b"\0", *(frame.meta[:size] for size in range(len(frame.meta)))]:
        assert refusal(frame._replace(meta=meta)).code is ErrorCode.BAD_FRAME, (opcode, meta)


@EACH
def test_a_payload_exists_where_one_belongs_and_nowhere_else(opcode: m.Opcode) -> None:
    frame, row = m.encode(SAMPLES[opcode], 7), m.TABLE[opcode]
    if row.payload:
        assert getattr(m.decode(frame._replace(payload=b"other")), row.payload) == b"other"
    else:
        assert refusal(frame._replace(payload=bytes(frame.payload) + b"\0")).code is ErrorCode.BAD_FRAME


def test_a_flag_is_0_or_1() -> None:
    frame = m.encode(m.ChangeDirectory("d", True, 2, b"w" * 16))
    for byte, known in ((0, True), (1, True), (2, False), (255, False)):
        changed = frame._replace(meta=bytes([byte]) + frame.meta[1:])
        if known:
            assert m.decode(changed) == m.ChangeDirectory("d", bool(byte), 2, b"w" * 16)
        else:
            assert "neither" in str(refusal(changed))


def test_an_opcode_without_a_row_is_named() -> None:
    for number in set(range(256)) - set(m.Opcode):
        error = refusal(Frame(number, 9, b""))
        assert (error.code, str(number) in str(error)) == (ErrorCode.UNKNOWN_OPCODE, True)


def test_requests_are_below_128_and_every_message_has_an_opcode() -> None:
    answers = {"Welcome", "DirectoryOpened", "DurabilityAck", "Data", "Listing", "StatResult", "Deleted",
               "Configured", "Pong", "Bye", "RepairAck", "Stamped", "Witnessed", "ScrubProgress",
               "Error"}  # fmt: skip
    for opcode, row in m.TABLE.items():
        assert (opcode >= 128) == (row.cls.__name__ in answers)
    assert set(m.Message.__subclasses__()) == {row.cls for row in m.TABLE.values()}


@pytest.mark.parametrize("size", [0, 255, 256])
def test_a_name_has_at_most_255_bytes_on_the_wire(size: int) -> None:
    for message in (m.Delete("é" * size), m.DurabilityAck("é" * size, 1, 0)):
        if size < 256:
            assert m.decode(m.encode(message)) == message
        else:
            with pytest.raises(LocalProtocolError, match="does not fit"):
                m.encode(message)


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_texts_and_bytes_have_at_most_65535_bytes(size: int) -> None:
    for message in (m.Configure(bytes(size)), m.Hello(client="a" * size)):
        if size < 65_536:
            assert m.decode(m.encode(message)) == message
        else:
            with pytest.raises(LocalProtocolError, match="does not fit"):
                m.encode(message)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_of_another_length_is_refused_in_every_message(size: int) -> None:
    checked = 0
    for message in SAMPLES.values():
        for field in message.__struct_fields__:
            if field in ("store_id", "server_id", "writer_id", "stamp_id", "before_id"):
                values = {name: getattr(message, name) for name in message.__struct_fields__}
                with pytest.raises(LocalProtocolError, match=f"{field} must be exactly 16 bytes"):
                    m.encode(type(message)(**{**values, field: bytes(size)}))
                checked += 1
    assert checked == 12
    with pytest.raises(LocalProtocolError, match="got str"):
        check_id("a" * 16, "writer_id")  # type: ignore[arg-type]


# --- entries ---


def test_entries_are_exactly_as_many_as_are_reported() -> None:
    good = m.encode_entries((INFO, INFO))
    assert m.decode_entries(good) == (INFO, INFO)
    assert m.decode_entries(m.encode_entries(())) == ()
    bad = [good + b"\0", *(good[:size] for size in range(len(good)))]
    bad += [struct.pack(">I", count) + good[4:] for count in (0, 1, 3, 2**32 - 1)]
    for data in bad:
        with pytest.raises((ValueError, struct.error)):
            m.decode_entries(data)


@pytest.mark.parametrize("marks", range(256))
def test_three_marks_are_known(marks: int) -> None:
    data = m.encode_entries((INFO,))[:-1] + bytes([marks])
    if marks < 8:
        (info,) = m.decode_entries(data)
        assert (info.appending, info.corrupt, info.poisoned) == (
            bool(marks & 1),
            bool(marks & 2),
            bool(marks & 4),
        )
        assert m.encode_entries((info,)) == data
    else:
        with pytest.raises(ValueError, match="unknown marks"):
            m.decode_entries(data)


@pytest.mark.parametrize("count", [0, 2])
def test_a_stat_has_one_entry(count: int) -> None:
    frame = m.encode(SAMPLES[m.Opcode.STAT_RESULT])
    assert f"expected one entry, got {count}" in str(
        refusal(frame._replace(payload=m.encode_entries((INFO,) * count)))
    )


# --- frames ---


@pytest.mark.parametrize("over", [0, 1])
def test_a_frame_has_the_most_that_is_allowed_and_no_more_on_both_ends(over: int) -> None:
    for meta, payload in (
        (meta_bytes_max + over, 0),
        (0, payload_bytes_max + over),
        (meta_bytes_max, payload_bytes_max),
    ):
        frame = Frame(9, 1, bytes(meta), bytes(payload))
        if meta <= meta_bytes_max and payload <= payload_bytes_max:
            decoder = FrameDecoder()
            decoder.receive(encode_frame(frame))
            assert decoder.next_frame() == frame
            continue
        with pytest.raises(LocalProtocolError, match=f"{meta} and {payload}"):
            frame_head(frame)


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("part", ["meta", "payload"])
def test_what_an_end_allows_is_kept_to_the_byte(part: str, over: int) -> None:
    data = encode_frame(
        Frame(9, 1, bytes(5 + over if part == "meta" else 5), bytes(7 + over if part == "payload" else 7))
    )
    early, late = FrameDecoder(meta_max=5, payload_max=7), FrameDecoder()
    late.allow(5, 7)
    for decoder in (early, late):
        decoder.receive(data[:32])
        if over:
            with pytest.raises(RemoteProtocolError, match="announced") as caught:
                decoder.next_frame()
            assert (caught.value.code, caught.value.request_id) == (ErrorCode.TOO_LARGE, 1)
        else:
            assert decoder.next_frame() is None
            assert decoder.needed == len(data)


@pytest.mark.parametrize(
    ("begun", "spoken"),
    [
        (b"HTTP/1.1 400", "an HTTP response"), (b"GET / HTTP/1.1", "an HTTP request"),
        (b"POST / HTTP/1.1", "an HTTP request"), (b"SSH-2.0-x", "ssh"), (b"\x15\x03\x03", "TLS"),
        (b"\x16\x03\x01", "TLS"), (b"\x17\x03\x01", ""), (b"\xd0\x4a", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [2, 40])
def test_a_stranger_is_told_what_it_speaks_from_two_bytes_on(begun: bytes, spoken: str, size: int) -> None:
    decoder = FrameDecoder()
    decoder.receive(begun[:2] if size == 2 else begun.ljust(size, b"."))
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.next_frame()
    assert caught.value.code is ErrorCode.BAD_FRAME
    assert (f"that is {spoken}, not DOS" in str(caught.value)) == bool(spoken)
    assert f"not {begun[:2].hex()}" in str(caught.value)


def test_the_first_byte_alone_tells_a_stranger_or_is_waited_behind() -> None:
    decoder = FrameDecoder()
    assert decoder.next_frame() is None
    decoder.receive(b"\xd0")
    assert decoder.next_frame() is None
    decoder.receive(b"\x5e")
    assert (decoder.next_frame(), decoder.buffered, decoder.needed) == (None, 2, 32)
    decoder = FrameDecoder()
    decoder.receive(b"G")
    with pytest.raises(RemoteProtocolError):
        decoder.next_frame()


def test_a_bad_digest_names_its_request_and_is_reported_again() -> None:
    data = bytearray(encode_frame(m.encode(SAMPLES[m.Opcode.GET], 77)))
    data[-1] ^= 1
    decoder = FrameDecoder()
    decoder.receive(data)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="opcode 4 does not match") as caught:
            decoder.next_frame()
        assert (caught.value.code, caught.value.request_id) == (ErrorCode.BAD_DIGEST, 77)


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 5000), st.booleans(), st.booleans())
@example([3000] * 12, 5000, True, True)
@example([3000] * 12, 5000, False, True)
def test_bytes_may_come_in_by_copy_and_by_view_in_turns(
    sizes: list[int], piece: int, by_view: bool, lazy: bool
) -> None:
    """`lazy`: one frame is taken after each piece, while whole ones wait, as under backpressure."""
    sent = [
        Frame(9, number, b"m" * (number % 5), bytes([number]) * size) for number, size in enumerate(sizes)
    ]
    data, decoder, got = b"".join(map(encode_frame, sent)), FrameDecoder(capacity_grown=20_000), []
    for at in range(0, len(data), piece):
        chunk = memoryview(data[at : at + piece])
        while len(chunk):
            if by_view:
                room = decoder.writable()
                assert len(room)
                count = min(len(room), len(chunk))
                room[:count] = chunk[:count]
                decoder.wrote(count)
            else:
                count = len(chunk)
                decoder.receive(chunk)
            chunk, by_view = chunk[count:], by_view if lazy else not by_view
        while (frame := decoder.next_frame()) is not None:
            got.append(frame)
            if lazy:
                break
    got += iter(decoder.next_frame, None)
    assert got == sent
    assert decoder.buffered == 0
    decoder.shrink()
    assert decoder.capacity == 16 * 1024


def test_memory_is_taken_when_it_is_filled_and_given_back_between_frames() -> None:
    decoder = FrameDecoder(capacity_grown=50_000)
    data = encode_frame(Frame(9, 1, b"", bytes(60_000)))
    decoder.receive(data[:100])
    assert (decoder.next_frame(), decoder.capacity) == (None, 16 * 1024), "only announced"
    decoder.shrink()
    assert decoder.buffered == 100, "one that has begun is kept"
    sent = 100
    while sent < len(data):
        room = decoder.writable()
        count = min(len(room), len(data) - sent)
        room[:count] = data[sent : sent + count]
        decoder.wrote(count)
        sent += count
    assert decoder.capacity == len(data), "as large as the frame, which is more than a grown one"
    assert decoder.next_frame() == Frame(9, 1, b"", bytes(60_000))
    decoder.shrink()
    assert decoder.capacity == 16 * 1024


def test_a_view_or_a_copy_of_the_payload_as_is_asked_for() -> None:
    for copy, kind in ((True, bytes), (False, memoryview)):
        decoder = FrameDecoder(copy=copy)
        decoder.receive(encode_frame(Frame(9, 1, b"m", b"payload", 3)))
        frame = decoder.next_frame()
        assert frame is not None
        assert (type(frame.payload), frame.flags) == (kind, 3)


# --- The small parts at their boundaries: stamps, names, tokens, addresses, errors, and numbers ------------


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
    assert parse_id(id_text(bytes(range(16)))) == bytes(range(16))
    for text in ("", "0" * 30, "0" * 34, " ".join(["00"] * 16), "zz" * 16, " " + "00" * 16):
        with pytest.raises(ValueError, match=r"id is 32 hex|non-hexadecimal"):
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
    fenced = errors.FencedError("text", actual=12)
    assert (fenced.code, fenced.epoch_held) == (ErrorCode.FENCED, 12)
    assert errors.WouldLoseError("text", actual=9).durable == 9


@pytest.mark.parametrize("code", list(ErrorCode))
def test_a_refusal_is_of_the_class_for_its_code_and_keeps_the_servers_remedy(code: ErrorCode) -> None:
    error = refused(m.Error(code, "words", "do so", 7, b"r"))
    assert (error.remedy, error.actual, error.record, str(error)) == ("do so", 7, b"r", "words (do so)")
    ours = [cls for cls in RefusedError.__subclasses__() if cls.__module__ == errors.__name__]
    own = {cls.code_of_class: cls for cls in ours}
    assert type(error) is own.get(code, RefusedError)
    without = refused(m.Error(code, "words"))
    assert VERDICTS[code].remedy in str(without)
    assert without.code == code


def test_a_code_from_a_newer_server_is_still_an_error_one_can_catch() -> None:
    error = refused(m.Error(9999, "words", "do so", 7, b"r"))
    assert (type(error), error.code, error.actual) == (RefusedError, ErrorCode.INTERNAL, 7)
    assert (error.remedy, error.record, "9999" in str(error)) == ("do so", b"r", True)


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
    for cls in m.Message.__subclasses__():
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


# --- Names, errors, session states: the small tables -------------------------------------------------------


HOSTILE = [
    *("", ".", "..", "a/../b", "/etc/passwd", "//", "~", "a\\b", "%2e%2e", "..\u2024", "\uff0f", "\u202eabc"),
    *("-rf", ".tmp", ".claim", "a b", "a\0", "a\n", "\n", "é", "x" * 129, "_a", "a:b", "a\r", "\uff11"),
]


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
