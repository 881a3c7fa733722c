"""The DOS client: access to one server, or to a store of several servers, from trio or from plain threads.

This package handles objects. Journals are built on it in `journal`.

    async with open_store("dos://h1,h2,h3") as store:
        async with await store.claim("app.w0000", epoch, writer_id) as claim:
            writer = claim.open_object("greetings")
            await writer.wait_synced(writer.append(b"hello"))

Packages, lowest first:

    core        decisions, as pure state machines and functions
    sessions    connections and requests to one server
    reading     reads without a claim: hedged, committed, followed
    writing     a claim, its links to members and their copies
    repair      comparison and repair of copies
    membership  which servers form the store, and how that changes
    status      the status of claims and members, for logs and metrics
    cli         the commands

`store` opens a `live_store`. `blocking` offers the same API to plain threads.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dos_client.core.backoff import backoff_s
    from dos_client.core.quorum import Quorums
    from dos_client.errors import (
        BadUrlError,
        LossError,
        MissingDataError,
        NotEmptyError,
        QuorumUnavailableError,
        ReplacementError,
        StoreNotReadyError,
        TokenRefusedError,
    )
    from dos_client.live_store import Store
    from dos_client.membership.filling import ReplaceProgress
    from dos_client.membership.founding import init_store
    from dos_client.membership.recovering import recover_store
    from dos_client.membership.replacing import add_member, replace_member
    from dos_client.reading.streaming import Bookmark
    from dos_client.repair.repairing import Repair, RepairReport, repair_object, repair_store
    from dos_client.repair.verifying import VerifyReport, verify_store
    from dos_client.sessions.connection import Connection, open_connection
    from dos_client.sessions.directory_view import DirectoryView
    from dos_client.sessions.members import MemberStatus
    from dos_client.status.claim_status import ClaimStatus
    from dos_client.store import connect, open_store
    from dos_client.urls import DosUrl, parse_url
    from dos_client.writing.claim import Claim
    from dos_client.writing.object_writer import ObjectWriter

__all__ = [
    "BadUrlError",
    "Bookmark",
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
    "Quorums",
    "Repair",
    "RepairReport",
    "ReplaceProgress",
    "ReplacementError",
    "Store",
    "StoreNotReadyError",
    "TokenRefusedError",
    "VerifyReport",
    "add_member",
    "backoff_s",
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

MODULES = {
    "dos_client.core.backoff": ("backoff_s",),
    "dos_client.core.quorum": ("Quorums",),
    "dos_client.errors": (
        "BadUrlError",
        "LossError",
        "MissingDataError",
        "NotEmptyError",
        "QuorumUnavailableError",
        "ReplacementError",
        "StoreNotReadyError",
        "TokenRefusedError",
    ),
    "dos_client.live_store": ("Store",),
    "dos_client.membership.filling": ("ReplaceProgress",),
    "dos_client.membership.founding": ("init_store",),
    "dos_client.membership.recovering": ("recover_store",),
    "dos_client.membership.replacing": (
        "add_member",
        "replace_member",
    ),
    "dos_client.reading.streaming": ("Bookmark",),
    "dos_client.repair.repairing": (
        "Repair",
        "RepairReport",
        "repair_object",
        "repair_store",
    ),
    "dos_client.repair.verifying": (
        "VerifyReport",
        "verify_store",
    ),
    "dos_client.sessions.connection": (
        "Connection",
        "open_connection",
    ),
    "dos_client.sessions.directory_view": ("DirectoryView",),
    "dos_client.sessions.members": ("MemberStatus",),
    "dos_client.status.claim_status": ("ClaimStatus",),
    "dos_client.store": (
        "connect",
        "open_store",
    ),
    "dos_client.urls": (
        "DosUrl",
        "parse_url",
    ),
    "dos_client.writing.claim": ("Claim",),
    "dos_client.writing.object_writer": ("ObjectWriter",),
}
"""Module -> its names that are the package's too."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(globals(), MODULES)
