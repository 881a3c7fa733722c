"""Access to stores, inputs and journaled directories from plain threads: no call is a coroutine."""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dataflow.blocking import close_input as close_input
    from dataflow.blocking import open_producer as open_producer
    from dataflow.blocking import read_merged as read_merged
    from dos_client.blocking import BlockingClaim as BlockingClaim
    from dos_client.blocking import BlockingObjectWriter as BlockingObjectWriter
    from dos_client.blocking import BlockingStore as BlockingStore
    from dos_client.blocking import connect as connect
    from dos_client.blocking import open_store as open_store
    from journal.files.blocking import BlockingDirectory as BlockingDirectory
    from journal.files.blocking import open_directory as open_directory
    from journal.files.blocking import open_local_directory as open_local_directory
    from journal.files.blocking import restore as restore
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
