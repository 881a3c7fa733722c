"""Read what is on the platters, up to the first damaged extent, without the server's code for reading."""

from dos_protocol.digests import digest64
from dos_server.core.files.extent import HeaderFault, decode_header, object_seed
from dos_server.limits import extent_header_bytes


def payload_at(data: bytes | None, path: str) -> bytes:
    """Return the content of an object from its file at `d/DIRECTORY/OBJECT`; b'' if there is none."""
    _, directory, name = path.split("/")
    return b"" if data is None else payload_of(data, object_seed(directory, name))


def payload_of(data: bytes, seed: int) -> bytes:
    """Return the content of the undamaged extents at the beginning of a file."""
    return whole_of(data, seed)[0]


def whole_of(data: bytes, seed: int) -> tuple[bytes, int]:
    """Return the content of the undamaged extents at the beginning of a file, and where in the file they
    end."""
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
