"""The writer's end of one object.

Rules of this file: bytes in, quorum watermarks out. What is sent where is the links' matter.
"""

from typing import TYPE_CHECKING

import trio

from dos_client.arguments import check_number
from dos_client.core.window import SendWindow
from dos_client.limits import chunk_bytes_max, journal_lag_bytes_max
from dos_client.writing.target import WriteTarget
from dos_protocol.digests import Buffer
from dos_protocol.errors import ClosedError
from dos_protocol.limits import u64_max

if TYPE_CHECKING:
    from dos_client.writing.claim import Claim


class ObjectWriter:
    """Appends to one object of a claim. Made by `Claim.open_object`; used from the claim's own trio thread.

    `append` only buffers; sending, counting and catching up go on behind it. An append is durable when
    `synced` has reached the size that `append` returned, and at no other sign."""

    def __init__(self, claim: "Claim", target: WriteTarget) -> None:
        assert target.window is not None
        self._claim = claim
        self._target = target
        self._window: SendWindow = target.window
        self._yielded_at = 0

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def size(self) -> int:
        """Bytes appended here, whether acknowledged or not."""
        return self._window.size

    @property
    def synced(self) -> int:
        """Everything below is on stable storage on a quorum (P-1, P-5)."""
        return self._target.synced

    @property
    def received(self) -> int:
        """Everything below is with a quorum, not all of it durable. Promises nothing across a take-over."""
        return self._target.received

    @property
    def digest(self) -> int:
        """The prefix digest at `size`."""
        return self._window.digest

    def append(self, data: Buffer) -> int:
        """Put bytes at the end; returns the size with them. Never waits: see `wait_room`.

        Raises FencedError once the claim is lost, ClosedError after `seal` or the claim's end. A `bytes` is
        kept, not copied: anything else is copied."""
        if self._claim.ended is not None:
            self._claim.check()
        target, window = self._target, self._window
        if target.window is None or target.on_complete is not None:
            raise ClosedError(f"{self.name} is sealed")
        if target.synced == window.size:
            target.about_to_append()
        size = window.append(data)
        self._claim.wake_links()
        return size

    async def wait_synced(self, size: int) -> None:
        """Wait until `synced` is at least `size`. Raises FencedError, ClosedError. Waits for ever without a
        quorum.

        Whatever ends the wait, the bytes stay in hand and go on being sent. Raises LocalProtocolError for a
        size that was not appended."""
        self._check_appended(size)
        while self._target.synced < size:
            self._claim.check()
            await self._target.synced_waiters.add(size).wait()

    async def wait_received(self, size: int) -> None:
        """`wait_synced`, for `received`."""
        self._check_appended(size)
        while self._target.received < size:
            self._claim.check()
            await self._target.received_waiters.add(size).wait()

    def _check_appended(self, size: int) -> None:
        """Refuse to wait for what was never appended. A size below 0 is reached: callers wait for `size` less
        some slack. A claim that is over says so itself."""
        if self._claim.ended is None:
            check_number(size, "size", least=-u64_max, most=self.size)

    async def wait_room(self) -> None:
        """Wait until fewer than `journal_lag_bytes_max` bytes are not synced: back-pressure instead of memory
        (P-9). Now and then it lets other tasks run: call it in every loop that appends."""
        size = self._window.size
        if size - self._target.synced >= journal_lag_bytes_max:
            await self.wait_synced(size - journal_lag_bytes_max + 1)
            self._yielded_at = size
        elif size - self._yielded_at >= chunk_bytes_max:
            await trio.lowlevel.checkpoint()  # the links send now
            self._yielded_at = size
        if self._claim.ended is not None:
            self._claim.check()

    def seal(self) -> None:
        """Nothing more will be appended; the memory can go once a quorum has it all."""
        self._claim.seal(self._target)
