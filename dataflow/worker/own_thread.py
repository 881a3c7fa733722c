"""The link thread of a worker: it runs the links while the main thread runs the circuit."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import trio

from checkpoint import Counters
from checkpoint.errors import OrphanedError
from dataflow import limits
from dataflow.worker.links import Links
from dataflow.worker.messages import Inbox, LinksEnded, Shared, ToLinks
from dataflow.worker.spec import WorkerSpec
from dos_monitoring import SilentLoopError, answer_of_loop, log_fields

logger = logging.getLogger("dos.dataflow")


class LinkThread:
    """The thread that runs `Links`. `start` it, `post` messages to it, `join` it."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        inbox: Inbox,
        shared: Shared,
        host: Callable[[int, int], None],
        metrics: Callable[[str], str],
    ) -> None:
        self._spec = spec
        self._inbox = inbox
        self._shared = shared
        self._links = Links(spec, inbox=inbox, shared=shared, host=host, metrics=metrics)
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

    def sample(self) -> Counters:
        """Return the counters of the worker. Call it in another thread than the two of the worker.

        Raises SilentLoopError if the loop of this thread does not answer.
        """
        if self._token is None:
            raise SilentLoopError("its event loop has not started")
        return answer_of_loop(self._token, self._links.sample)

    def log_fields(self) -> dict[str, Any]:
        """Return what each line of the log has in addition."""
        of = self._spec
        return {"region": of.region, "worker": of.worker, "incarnation": self._shared.incarnation}

    def _run(self) -> None:
        try:
            with log_fields(self.log_fields):
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
