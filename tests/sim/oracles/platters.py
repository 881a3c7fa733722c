"""P-1, O1: what a machine has told to be synced is on its platters after a power cut, whatever others have.

The platters are read by this file's own hand, as far as extents are whole; the server is not asked.
"""

from typing import TYPE_CHECKING

from dos_protocol.digests import digest64
from dos_server.core.extent import HeaderFault, decode_header, object_seed
from dos_server.limits import extent_header_bytes
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.sim.store.server import Machine


def check_platters(machine: "Machine") -> None:
    """Raises ViolationError. Objects that the run itself damaged are left out."""
    for (directory, name), told in machine.told.items():
        path = f"d/{directory}/{name}"
        if told and path not in machine.flipped:
            data = machine.disk.content(path) or b""
            found = len(payload_of(data, object_seed(directory, name)))
            if found < told:
                raise ViolationError("O1", f"{machine.name} told {told} bytes of {path}, and has {found}")


def payload_of(data: bytes, seed: int) -> bytes:
    """What the whole extents at the beginning of a file hold."""
    payload, position = bytearray(), 0
    while position + extent_header_bytes <= len(data):
        header = decode_header(data, seed, position)
        if isinstance(header, HeaderFault) or header.offset != len(payload):
            break
        begin = position + extent_header_bytes
        position = begin + header.payload_bytes
        piece = data[begin:position]
        if len(piece) < header.payload_bytes or digest64(piece) != header.payload_digest:
            break
        payload += piece
    return bytes(payload)
