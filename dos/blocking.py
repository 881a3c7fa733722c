"""Access to stores and inputs from plain threads: no call is a coroutine."""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dataflow.blocking import close_input as close_input
    from dataflow.blocking import open_producer as open_producer
    from dos_client.blocking import BlockingClaim as BlockingClaim
    from dos_client.blocking import BlockingObjectWriter as BlockingObjectWriter
    from dos_client.blocking import BlockingStore as BlockingStore
    from dos_client.blocking import connect as connect
    from dos_client.blocking import open_store as open_store
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
