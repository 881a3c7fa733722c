"""How to treat a server's answer when a member's session begins. Pure: no I/O.

A session is useful only with the server that the record names, at the generation that the client uses. Each
other case has one reaction.
"""

from enum import Enum

from dos_protocol.store_record import StoreRecord


class MemberAdmission(Enum):
    """The result of comparing a server with the member that is expected at its address."""

    ADMITTED = "it is the member, at this generation"
    NEWER_RECORD = "it has a newer record: read the membership again"
    OLDER_RECORD = "it has an older record, or none yet: send it this one"
    OTHER_SERVER = "another server answers at this address, or the member was wiped; it does not count"
    OTHER_STORE = "it belongs to another store; it does not count"


def admit(
    record: StoreRecord, expected_id: bytes, server_id: bytes, server_record: StoreRecord | None
) -> MemberAdmission:
    """Compare a server with the record. It identifies as `server_id` and stores `server_record` (None: no
    record).
    """
    if server_record is not None and server_record.store_id != record.store_id:
        return MemberAdmission.OTHER_STORE
    if server_record is not None and server_record.generation > record.generation:
        return MemberAdmission.NEWER_RECORD
    if server_id != expected_id:
        return MemberAdmission.OTHER_SERVER
    if server_record != record:
        return MemberAdmission.OLDER_RECORD
    return MemberAdmission.ADMITTED
