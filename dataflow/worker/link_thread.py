"""The link thread of a worker: it runs the links while the main thread runs the circuit."""

import logging
import os
import threading
from collections.abc import Callable

import trio

from checkpoint.errors import OrphanedError
from dataflow import limits
from dataflow.worker.links import Links
from dataflow.worker.messages import Inbox, LinksEnded, Shared, ToLinks
from dataflow.worker.spec import WorkerSpec

logger = logging.getLogger("dos.dataflow")


class LinkThread:
    """The thread that runs `Links`. `start` it, `post` messages to it, `join` it."""

    def __init__(
        self, spec: WorkerSpec, *, inbox: Inbox, shared: Shared, host: Callable[[int, int], None]
    ) -> None:
        self._inbox = inbox
        self._shared = shared
        self._links = Links(spec, inbox=inbox, shared=shared, host=host)
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="dos-links", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def post(self, message: ToLinks) -> None:
        """Send a message from the circuit thread. Never blocks.

        Dropped if its incarnation or the thread has ended.
        """
        assert self._token is not None, "a message before the first order"
        try:
            self._token.run_sync_soon(self._links.deliver, message)
        except trio.RunFinishedError:
            logger.debug("dropped %s: the links have ended", type(message).__name__)

    def _run(self) -> None:
        try:
            ended = trio.run(self._main)
        except BaseException as error:  # from trio itself: the main thread must end too
            self._inbox.put(LinksEnded(f"{type(error).__name__}: {error}", error))
            raise
        if isinstance(ended.error, OrphanedError):
            self._end_process_later()

    async def _main(self) -> LinksEnded:
        self._token = trio.lowlevel.current_trio_token()
        return await self._links.run()

    def _end_process_later(self) -> None:
        """Kill the process if the circuit does not end in time.

        The coordinator is gone, so nothing else would end it, and user code may never return. The process
        must not outlive its region.
        """
        if not self._shared.over.wait(limits.orphan_exit_s):
            logger.critical("the circuit did not end within %g s: ending the process", limits.orphan_exit_s)
            os._exit(limits.orphan_exit_code)
