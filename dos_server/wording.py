"""Texts for the log and the command line."""

from pathlib import Path

from dos_protocol.names import id_text
from dos_protocol.store_record import decode_store_record


def record_text(data: bytes) -> str:
    """Return the members of a store, for the log."""
    record = decode_store_record(data)
    members = ", ".join(f"{one.address} {one.state}" for one in record.members)
    return (
        f"store {id_text(record.store_id)}, generation {record.generation}, Qa {record.ack_quorum}: {members}"
    )


def path_argument(text: str) -> Path:
    """Return the path given to a command.

    Raises ValueError for an empty one, which would mean the working directory: an unset variable in a script
    must not select that.
    """
    if not text:
        raise ValueError("the path is empty: give a directory, or . for the working directory")
    return Path(text)
