"""Tests of graphs and sinks, and stores in memory. docs/testing.md describes them."""

from typing import TYPE_CHECKING

from dos_protocol.lazy_names import lazy_names

if TYPE_CHECKING:
    from dataflow.testing import CRASH as CRASH
    from dataflow.testing import Trial as Trial
    from dataflow.testing import assert_crash_safe as assert_crash_safe
    from dataflow.testing.sink_check import SinkCheckError as SinkCheckError
    from dataflow.testing.sink_check import check_refuses_other_run as check_refuses_other_run
    from dataflow.testing.sink_check import check_sink as check_sink
    from dos_server.testing import memory_server as memory_server
    from dos_server.testing import memory_store as memory_store
    from dos_server.testing import threaded_server as threaded_server
    from dos_server.testing import threaded_store as threaded_store
else:
    __getattr__, __dir__, __all__ = lazy_names(globals())
