"""What the log says of things that are bytes to the server.

Rules of this file: values in, words out.
"""

from pathlib import Path

from dos_protocol.names import id_text
from dos_protocol.store_record import decode_store_record


def record_text(data: bytes) -> str:
    """Who the members of a store are now, also when a person forced it."""
    record = decode_store_record(data)
    members = ", ".join(f"{one.address} {one.state}" for one in record.members)
    return (
        f"store {id_text(record.store_id)}, generation {record.generation}, Qa {record.ack_quorum}: {members}"
    )


def path_given(text: str) -> Path:
    """Return the path that a command was given. Raises ValueError for an empty one, which would be the
    working directory: a variable of a script that is not set must not become that.
    """
    if not text:
        raise ValueError("the path is empty: give a directory, or . for the working directory")
    return Path(text)
