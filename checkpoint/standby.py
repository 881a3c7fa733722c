"""Both ends of the link of a stand-by: a process that has imported everything and waits to become a worker.

    stand-by                            coordinator
    Hello(role "standby", number)  ->                        the handshake of any link
                                   <-   Assigned(w, a)       when attempt a of worker w is to be started
    Assigned(w, a)                 ->                        it accepts
                                   <-   Assigned(w, a)       confirmed: it becomes that attempt

Then both close the link, and the worker joins with a control link like any other. An acceptance that arrives
too late is not confirmed: the coordinator closes the link, and another process becomes the worker. So no two
processes are the same attempt. A stand-by whose link ends without a confirmation ends, too.
"""

import logging
from importlib import metadata
from typing import Final

import trio

from checkpoint import limits
from checkpoint.core.channel_frames import ChannelFrame
from checkpoint.core.handshake import LinkAssigned, LinkHello, assignment, read_assignment
from checkpoint.errors import ChannelFrameError, HandshakeError, LinkClosedError
from checkpoint.link import Link, connect_link
from checkpoint.runtime import DISTRIBUTION, package_version
from dos_protocol.errors import BrokenConnectionError, ClosedError

logger: Final = logging.getLogger("dos.checkpoint")

_ENDS: Final = (LinkClosedError, BrokenConnectionError, ClosedError, ChannelFrameError, HandshakeError)


class _Waiting:
    """A stand-by that waits."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.answer: LinkAssigned | None = None
        self.answered = trio.Event()
        """It has sent its answer, or its link has ended."""
        self.settled = trio.Event()
        """The assignment was confirmed or given up."""


class StandbyLinks:
    """The links of the stand-bys of one region that wait for a worker to become, at its coordinator."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._token: trio.lowlevel.TrioToken | None = None
        self._waiting: dict[int, _Waiting] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of the stand-bys that wait, the one first that has waited longest. May be called
        from any thread.
        """
        return list(self._waiting)

    async def serve(self, link: Link) -> None:
        """Keep the link of a stand-by until it ends, or its assignment is settled."""
        self._token = trio.lowlevel.current_trio_token()
        number, one = link.hello.attempt, _Waiting(link)
        self._waiting[number] = one
        try:
            one.answer = read_assignment(await link.receive())  # before an assignment it sends nothing
            one.answered.set()
            await one.settled.wait()
        except _ENDS as error:
            logger.info("region %s: stand-by %d is gone: %s", self._job, number, error.args[0])
        finally:
            one.answered.set()
            if self._waiting.get(number) is one:
                del self._waiting[number]

    def assign(self, number: int, worker: int, attempt: int) -> bool:
        """Let a stand-by become this attempt of a worker. Return whether it does; otherwise it ends.

        Call it from a thread other than the coordinator's. Blocks for `standby_answer_s` at most.
        """
        if self._token is None:
            return False
        assigned = LinkAssigned(worker=worker, attempt=attempt)
        try:
            return trio.from_thread.run(self._assign, number, assigned, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):  # the region has ended
            return False

    async def _assign(self, number: int, assigned: LinkAssigned) -> bool:
        one = self._waiting.pop(number, None)
        if one is None:
            return False
        try:
            if one.link.silent_s > limits.standby_silent_s:
                raise BrokenConnectionError(f"its host sent nothing for {one.link.silent_s:.1f} s")
            with trio.fail_after(limits.standby_answer_s):
                await one.link.send(assignment(self._job, assigned))
                await one.answered.wait()
            if one.answer != assigned:
                raise HandshakeError("it did not accept")
            await one.link.send(assignment(self._job, assigned))
        except (*_ENDS, trio.TooSlowError) as error:
            reason = error.args[0] if error.args else f"no answer in {limits.standby_answer_s:g} s"
            logger.warning("region %s: stand-by %d is not used: %s", self._job, number, reason)
            await one.link.aclose()
            return False
        finally:
            one.settled.set()
        return True


async def wait_for_assignment(
    coordinator: tuple[str, int], *, job: str, key: bytes, number: int, orphan_timeout_s: float
) -> LinkAssigned | None:
    """Connect to the coordinator as a stand-by, and wait until this process is to become a worker.

    Returns None if it is not needed: the link has ended; the coordinator's host has sent no packet for
    `orphan_timeout_s` seconds; or another version of this package was installed meanwhile, which a new
    process must run. Raises BrokenConnectionError, HandshakeError if there is no link.
    """
    hello = LinkHello(role="standby", job=job, worker=-1, attempt=number)
    link = await connect_link(*coordinator, key=key, hello=hello)
    try:
        offered = read_assignment(await _receive(link, orphan_timeout_s))
        if _is_replaced():
            logger.warning("stand-by %d ends: another version of %s was installed", number, DISTRIBUTION)
            return None
        await link.send(assignment(job, offered))
        return read_assignment(await _receive(link, orphan_timeout_s))
    except _ENDS as error:
        logger.info("stand-by %d ends: %s", number, error.args[0])
        return None
    finally:
        await link.aclose()


async def _receive(link: Link, silent_s: float) -> ChannelFrame:
    while True:
        with trio.move_on_after(limits.heartbeat_s):
            return await link.receive()
        if link.silent_s > silent_s:
            raise BrokenConnectionError(f"the coordinator's host sent nothing for {link.silent_s:.0f} s")


def _is_replaced() -> bool:
    """Return whether this process runs another version of the package than the one that is installed."""
    try:
        return metadata.version(DISTRIBUTION) != package_version()
    except metadata.PackageNotFoundError:  # it is being replaced now
        return True
