"""What to make of a server's answer when a member's session begins. Pure.

A session is worth having only with the very server that the record means, at the generation the client
uses. All else is one of few verdicts, each with one thing to do.
"""

from enum import Enum

from dos_protocol.store_record import StoreRecord


class MemberAdmission(Enum):
    """What a member's address turned out to be."""

    ADMITTED = "it is the member, at this generation"
    NEWER_RECORD = "it has a newer record: read the membership again"
    OLDER_RECORD = "it has an older record, or none yet: hand it this one"
    OTHER_SERVER = "another server stands at this address, or the member was wiped: it never counts"
    OTHER_STORE = "it belongs to another store: it never counts"


def admit(
    record: StoreRecord, expected_id: bytes, server_id: bytes, server_record: StoreRecord | None
) -> MemberAdmission:
    """The verdict on a server that says it is `server_id` and keeps `server_record` (None: none)."""
    if server_record is not None and server_record.store_id != record.store_id:
        return MemberAdmission.OTHER_STORE
    if server_record is not None and server_record.generation > record.generation:
        return MemberAdmission.NEWER_RECORD
    if server_id != expected_id:
        return MemberAdmission.OTHER_SERVER
    if server_record != record:
        return MemberAdmission.OLDER_RECORD
    return MemberAdmission.ADMITTED
