"""The wire protocol of DOS: frames, messages, digests, the store record, errors, session states.

Pure: no I/O, no clock. Bytes become frames (`frames`), frames become messages (`messages`).
"""

from dos_protocol.digests import PrefixDigest, digest64, prefix_digest
from dos_protocol.errors import DosError, ErrorCode
from dos_protocol.frames import Frame, FrameDecoder, encode_frame
from dos_protocol.names import check_name

__all__ = [
    "DosError",
    "ErrorCode",
    "Frame",
    "FrameDecoder",
    "PrefixDigest",
    "check_name",
    "digest64",
    "encode_frame",
    "prefix_digest",
]
