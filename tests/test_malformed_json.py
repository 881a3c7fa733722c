"""JSON from disks and links that is malformed, is not UTF-8, or nests too deeply: a named error, in every
decoder.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from checkpoint.core.links import frames as channel_frames
from checkpoint.core.links import handshake
from checkpoint.core.links.frames import decode_from_worker
from checkpoint.core.records import backups as backup_record
from checkpoint.core.records import manifest
from checkpoint.core.records.consumers import decode_register
from checkpoint.core.records.divisions import decode_division
from checkpoint.core.records.inputs import decode_ends
from checkpoint.core.records.outputs import decode_output
from checkpoint.core.records.staged import decode_mark
from checkpoint.errors import ControlMessageError, HandshakeError, ManifestError
from dataflow.core.entry_messages import decode_message
from dos_protocol.errors import CorruptDataError, DosError, LocalProtocolError
from dos_server.core.access import decode_tokens
from dos_server.core.quotas import decode_quotas
from journal import Op, Record
from journal.core.chain import start_of
from journal.core.errors import ChainError
from sites.core.deployed import Deployed
from sites.core.observed import SiteReport, decode_record
from tests.test_repository import ROOT

BAD: Final = {
    "no JSON": b"{",
    "a string that is not UTF-8": b'{"version": "\xb4"}',
    "a name that is not UTF-8": b'{"\xef\xa0": 1}',
    "not UTF-8 below": b'{"tokens": [{"name": "\xff"}], "streams": ["\xff"], "site": "\xff", "kind": "\xff"}',
    "a kind that is not UTF-8": b'{"type": "\xff"}',
    "deep": b"[" * 100_000,
    "deep below": b'{"consumers": ' + b'{"a":' * 100_000,
    "empty": b"",
}


def frame(kind: channel_frames.FrameType, payload: bytes) -> channel_frames.ChannelFrame:
    return channel_frames.ChannelFrame(kind, 0, 0, 0, 0, 0, 0, 0, 0, payload)


CONTROL, HANDSHAKE = channel_frames.FrameType.CONTROL, channel_frames.FrameType.HANDSHAKE
DECODERS: Final[dict[str, tuple[type[DosError], Callable[[bytes], Any]]]] = {
    "handshake": (HandshakeError, lambda data: handshake._decode(frame(HANDSHAKE, data))),
    "control message": (
        ControlMessageError,
        lambda data: decode_from_worker(frame(CONTROL, data)),
    ),
    "entry message": (ControlMessageError, lambda data: decode_message(frame(CONTROL, data))),
    "checkpoint": (ManifestError, lambda data: manifest.decode_checkpoint(0, [1, 1, 0], data)),
    "division": (ManifestError, lambda data: decode_division([1, 1], [data])),
    "register": (CorruptDataError, lambda data: decode_register([data], where="x", at=0)),
    "closed input": (CorruptDataError, lambda data: decode_ends([data], where="x", at=0)),
    "output": (CorruptDataError, lambda data: decode_output([1, 1, 0, 0], [data, b""], where="x", at=0)),
    "segment": (ChainError, lambda data: start_of(Record(Op.SEGMENT_START, strings=(data,)), "x")),
    "deployment": (CorruptDataError, lambda data: decode_record(Deployed, [data], where="x", at=0)),
    "report": (CorruptDataError, lambda data: decode_record(SiteReport, [data], where="x", at=0)),
    "tokens": (LocalProtocolError, lambda data: decode_tokens(data, "x")),
    "quotas": (LocalProtocolError, lambda data: decode_quotas(data, "x")),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("decoder", DECODERS)
def test_it_is_refused_by_name(decoder: str, bad: str) -> None:
    """What is in a field that the decoder does not know may be passed over."""
    error, decode = DECODERS[decoder]
    with pytest.raises(error) if bad in ("no JSON", "deep", "empty") else suppress(error):
        decode(BAD[bad])


@pytest.mark.parametrize("bad", BAD)
def test_a_mark_of_another_program_is_none_of_ours(bad: str) -> None:
    assert decode_mark(BAD[bad]) is None


def test_no_decoder_names_single_errors_of_msgspec() -> None:
    """`MALFORMED_JSON` has them all; UnicodeDecodeError is none of msgspec's."""
    assert backup_record.MALFORMED_JSON[0] is ValueError
    for folder in ("checkpoint", "dataflow", "dos_client", "dos_protocol", "dos_server", "journal", "sites"):
        for path in (ROOT / folder).rglob("*.py"):
            found = re.findall(r"except .*msgspec\.(?:DecodeError|MsgspecError)", path.read_text())
            assert not found, f"{path}: {found}"
