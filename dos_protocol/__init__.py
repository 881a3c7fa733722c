"""The wire of DOS: frames, messages, digests, the store record, errors, session states. Pure: no I/O, no
clock.

Pipeline order: `limits` -> `errors`, `names`, `digests` -> `frames` (bytes <-> frames) -> `messages` (frames
<-> meaning) -> `session_states` (what is legal when). `specification` says the same bytes a second time,
slowly, for the tests.
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
