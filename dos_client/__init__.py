"""The client of DOS: one server or a store of several, from trio or from plain threads. Objects only;
journals are above.

    async with open_store("dos://h1,h2,h3") as store:
        async with await store.claim("app.w0000", epoch, writer_id) as claim:
            writer = claim.open_object("greetings")
            await writer.wait_synced(writer.append(b"hello"))

Pipeline order: `urls` -> `dialling`, `connection` (one session) -> `link`, `catch_up` (one member of a
claim) -> `claim`, `object_writer` -> `live_store` -> `store`; `founding` and `replacing` make and change
stores; `blocking` is the same from threads. Reads: `reading` (sessions) -> `asking` (hedged) ->
`store_reads`, `committed` -> `streaming`, `following`; what they find wrong is in `damage`. What is decided
is decided in `core`.
"""

from dos_client.claim import Claim
from dos_client.connection import Connection, open_connection
from dos_client.errors import (
    BadUrlError,
    LossError,
    MissingDataError,
    NotEmptyError,
    QuorumUnavailableError,
    ReplacementError,
    StoreNotReadyError,
)
from dos_client.filling import ReplaceProgress
from dos_client.founding import init_store
from dos_client.live_store import Store
from dos_client.looking import DirectoryView
from dos_client.members import MemberStatus
from dos_client.object_writer import ObjectWriter
from dos_client.recovering import recover_store
from dos_client.repairing import Repair, RepairReport, repair_object, repair_store
from dos_client.replacing import add_member, replace_member
from dos_client.standing import ClaimStatus
from dos_client.store import connect, open_store
from dos_client.urls import DosUrl, parse_url
from dos_client.verifying import VerifyReport, verify_store

__all__ = [
    "BadUrlError",
    "Claim",
    "ClaimStatus",
    "Connection",
    "DirectoryView",
    "DosUrl",
    "LossError",
    "MemberStatus",
    "MissingDataError",
    "NotEmptyError",
    "ObjectWriter",
    "QuorumUnavailableError",
    "Repair",
    "RepairReport",
    "ReplaceProgress",
    "ReplacementError",
    "Store",
    "StoreNotReadyError",
    "VerifyReport",
    "add_member",
    "connect",
    "init_store",
    "open_connection",
    "open_store",
    "parse_url",
    "recover_store",
    "repair_object",
    "repair_store",
    "replace_member",
    "verify_store",
]
