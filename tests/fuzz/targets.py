"""What is fuzzed: one function a parser, from any bytes at all to nothing, or an exception that is a finding.

Each demands the same: no exception but the named ones; what decodes encodes to the same bytes; memory stays
bounded; and where there is an executable specification, both say the same of the same bytes.

Digests would keep a fuzzer out, so most targets take the input as fields and put the digest right themselves;
a first byte of 0 asks for the bytes as they are. No target knows the fuzzer: inputs are replayed without it.
"""

from collections.abc import Callable
from typing import Final

from tests.fuzz.disk_targets import extent, scan, small_records, tokens
from tests.fuzz.stream_targets import arrow, channel_frame, journal
from tests.fuzz.wire_targets import version0, wire

TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "wire": wire,
    "version0": version0,
    "extent": extent,
    "scan": scan,
    "records": small_records,
    "tokens": tokens,
    "journal": journal,
    "channel": channel_frame,
    "arrow": arrow,
}
