"""The writer's side of one object: bytes in, quorum sizes out. The links decide what is sent where."""

import trio

from dos_client.arguments import check_number
from dos_client.core.window import SendWindow
from dos_client.limits import chunk_bytes_max, journal_lag_bytes_max
from dos_client.writing.append_tracing import tracing_of
from dos_client.writing.target import WriteTarget
from dos_client.writing.views import ClaimView
from dos_protocol.digests import Buffer
from dos_protocol.errors import ClosedError
from dos_protocol.limits import u64_max


class ObjectWriter:
    """Appends to one object of a claim. Made by `Claim.open_object`, used from the claim's trio thread.

    `append` only buffers. Sending, counting and catching up happen in the background. An append is durable
    when `synced` has reached the size that `append` returned. No other sign means that it is durable.
    """

    def __init__(self, claim: ClaimView, target: WriteTarget) -> None:
        assert target.window is not None
        self._claim = claim
        self._target = target
        self._window: SendWindow = target.window
        self._yielded_at = 0
        self._tracing = tracing_of(target, claim.directory, self._members)

    def _members(self) -> dict[bytes, str]:
        return {link.server_id: link.member.address for link in self._claim.links()}

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def size(self) -> int:
        """Bytes appended here, whether acknowledged or not."""
        return self._window.size

    @property
    def synced(self) -> int:
        """All bytes before this offset are on stable storage on a quorum (P-1, P-5)."""
        return self._target.synced

    @property
    def received(self) -> int:
        """All bytes before this offset are on a quorum, but not all of them are durable. A take-over may lose
        them.
        """
        return self._target.received

    @property
    def digest(self) -> int:
        """The prefix digest at `size`."""
        return self._window.digest

    def append(self, data: Buffer) -> int:
        """Append bytes and return the new size. Never waits; use `wait_room` for backpressure.

        Raises FencedError after the claim is lost, ClosedError after `seal` or the claim's end. A `bytes`
        object is kept, anything else is copied.
        """
        if self._claim.ended is not None:
            self._claim.check()
        target, window = self._target, self._window
        if target.window is None or target.on_complete is not None:
            raise ClosedError(f"{self.name} is sealed")
        if target.synced == window.size:
            target.about_to_append()
        size = window.append(data)
        if self._tracing is not None:
            self._tracing.appended(size)
        self._claim.wake_links()
        return size

    async def wait_synced(self, size: int) -> None:
        """Wait until `synced` is at least `size`. Waits without limit while there is no quorum.

        Raises FencedError, ClosedError, and LocalProtocolError for a size that was not appended. If the wait
        is interrupted, the bytes are kept and still sent.
        """
        self._check_appended(size)
        while self._target.synced < size:
            self._claim.check()
            await self._target.synced_waiters.add(size).wait()

    async def wait_received(self, size: int) -> None:
        """Wait until `received` is at least `size`. Raises as `wait_synced`."""
        self._check_appended(size)
        while self._target.received < size:
            self._claim.check()
            await self._target.received_waiters.add(size).wait()

    def _check_appended(self, size: int) -> None:
        """Reject a wait for bytes that were never appended, because it could never end.

        A size below 0 counts as reached: callers wait for `size` minus some slack. An ended claim raises its
        own error.
        """
        if self._claim.ended is None:
            check_number(size, "size", least=-u64_max, most=self.size)

    async def wait_room(self) -> None:
        """Wait until fewer than `journal_lag_bytes_max` bytes are not synced: backpressure that bounds memory
        (P-9).

        Call it in every loop that appends. It also regularly lets other tasks run.
        """
        size = self._window.size
        if size - self._target.synced >= journal_lag_bytes_max:
            await self.wait_synced(size - journal_lag_bytes_max + 1)
            self._yielded_at = size
        elif size - self._yielded_at >= chunk_bytes_max:
            await trio.lowlevel.checkpoint()  # let the links send
            self._yielded_at = size
        if self._claim.ended is not None:
            self._claim.check()

    def seal(self) -> None:
        """Promise that nothing more is appended. The memory is freed once a quorum has everything."""
        self._claim.seal(self._target)
