"""What is on the platters, read by this file's own hand, as far as extents are whole; no server is asked."""

from dos_protocol.digests import digest64
from dos_server.core.extent import HeaderFault, decode_header, object_seed
from dos_server.limits import extent_header_bytes


def payload_at(data: bytes | None, path: str) -> bytes:
    """What a file of an object holds, by its path: `d/DIRECTORY/OBJECT`. Nothing, where there is none."""
    _, directory, name = path.split("/")
    return b"" if data is None else payload_of(data, object_seed(directory, name))


def payload_of(data: bytes, seed: int) -> bytes:
    """What the whole extents at the beginning of a file hold."""
    return whole_of(data, seed)[0]


def whole_of(data: bytes, seed: int) -> tuple[bytes, int]:
    """What the whole extents at the beginning of a file hold, and where in the file they end."""
    payload, end = bytearray(), 0
    while end + extent_header_bytes <= len(data):
        header = decode_header(data, seed, end)
        if isinstance(header, HeaderFault) or header.offset != len(payload):
            break
        begin = end + extent_header_bytes
        piece = data[begin : begin + header.payload_bytes]
        if len(piece) < header.payload_bytes or digest64(piece) != header.payload_digest:
            break
        payload += piece
        end = begin + header.payload_bytes
    return bytes(payload), end
