"""What the log says of things that are bytes to the server.

Rules of this file: values in, words out.
"""

from dos_protocol.names import id_text
from dos_protocol.store_record import decode_store_record


def record_text(data: bytes) -> str:
    """Who the members of a store are now, also when a person forced it."""
    record = decode_store_record(data)
    members = ", ".join(f"{one.address} {one.state}" for one in record.members)
    return (
        f"store {id_text(record.store_id)}, generation {record.generation}, Qa {record.ack_quorum}: {members}"
    )
