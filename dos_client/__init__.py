"""The DOS client: access to one server, or to a store of several servers, from trio or from plain threads.

    async with open_store("dos://h1,h2,h3") as store:
        async with await store.claim("app.w0000", epoch, writer_id) as claim:
            writer = claim.open_object("greetings")
            await writer.wait_synced(writer.append(b"hello"))

Rooms, lowest first: `core` (decisions, pure), `sessions`, `reading`, `writing`, `repair`, `membership`,
`cli`. `blocking` offers the same API to plain threads. Journals are built on this package in `journal`.
"""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dos_client.core.agreement import DirectoryView as DirectoryView
    from dos_client.core.quorum import Quorums as Quorums
    from dos_client.core.status import MemberStatus as MemberStatus
    from dos_client.errors import BadUrlError as BadUrlError
    from dos_client.errors import LossError as LossError
    from dos_client.errors import MissingDataError as MissingDataError
    from dos_client.errors import NotEmptyError as NotEmptyError
    from dos_client.errors import QuorumUnavailableError as QuorumUnavailableError
    from dos_client.errors import ReplacementError as ReplacementError
    from dos_client.errors import StoreNotReadyError as StoreNotReadyError
    from dos_client.errors import StoreRefusedError as StoreRefusedError
    from dos_client.errors import TokenRefusedError as TokenRefusedError
    from dos_client.file_token import FileToken as FileToken
    from dos_client.live_store import Store as Store
    from dos_client.membership.filling import ReplaceProgress as ReplaceProgress
    from dos_client.membership.founding import init_store as init_store
    from dos_client.membership.recovering import recover_store as recover_store
    from dos_client.membership.replacing import add_member as add_member
    from dos_client.membership.replacing import replace_member as replace_member
    from dos_client.randomness import backoff_s as backoff_s
    from dos_client.reading.committed import Bookmark as Bookmark
    from dos_client.repair.repairing import Repair as Repair
    from dos_client.repair.repairing import RepairReport as RepairReport
    from dos_client.repair.repairing import repair_object as repair_object
    from dos_client.repair.repairing import repair_store as repair_store
    from dos_client.repair.verifying import VerifyReport as VerifyReport
    from dos_client.repair.verifying import verify_store as verify_store
    from dos_client.sessions.connection import Connection as Connection
    from dos_client.sessions.connection import open_connection as open_connection
    from dos_client.store import connect as connect
    from dos_client.store import open_store as open_store
    from dos_client.urls import DosUrl as DosUrl
    from dos_client.urls import parse_url as parse_url
    from dos_client.writing.claim import Claim as Claim
    from dos_client.writing.claim import ClaimStatus as ClaimStatus
    from dos_client.writing.object_writer import ObjectWriter as ObjectWriter
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
