"""A link to an entry point, as its peers, producers and people open it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkpoint import LinkHello
from checkpoint.errors import ControlMessageError, EntryRefusedError, HandshakeError, LinkClosedError
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.core.entry_messages import (
    Ask,
    EntryMessage,
    EntryStatus,
    decode_message,
    link_job,
    link_key,
    message_frame,
    part_frame,
)
from dos_protocol.arguments import parse_listen
from dos_protocol.errors import BrokenConnectionError


class OtherEntryPointError(EntryRefusedError):
    """What listens at an address is no entry point of this handle, or has another token."""

    remedy = (
        "pass the token of the entry store, and the application and handle that `dos input serve` at this"
        " address names"
    )


class EntryLink:
    """A link to one entry point. Its calls raise BrokenConnectionError, LinkClosedError, ChannelFrameError
    and ControlMessageError.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, address: str, application: str, handle: str, token: bytes
    ) -> "AsyncIterator[EntryLink]":
        """Connect to HOST:PORT. Raises BrokenConnectionError; OtherEntryPointError if it serves another
        handle or has another token.
        """
        host, port = parse_listen(address, "an entry point")
        job = link_job(application, handle)
        hello = LinkHello(role="control", job=job, worker=-1, attempt=0)
        try:
            link = await connect_link(
                host, port, key=link_key(token), hello=hello, timeout_s=limits.entry_silence_s
            )
        except HandshakeError as error:
            if isinstance(error.__cause__, LinkClosedError):  # it ends
                raise BrokenConnectionError(str(error.args[0])) from error
            text = f"{address} does not serve input {handle!r} of application {application!r} for this token"
            raise OtherEntryPointError(f"{text}: {_reason(str(error.args[0]))}") from error
        try:
            yield cls(link)
        finally:
            await link.aclose()

    async def send(self, message: EntryMessage, parts: "list[tuple[int, bytes]] | None" = None) -> None:
        """Send a message, and the parts that it announces."""
        await self._link.send_many([message_frame(message), *(part_frame(data) for _, data in parts or ())])

    async def receive(self) -> EntryMessage:
        """Return the next message."""
        return decode_message(await self._link.receive())

    async def ask(self) -> EntryStatus:
        """Return the status of the entry point."""
        await self.send(Ask())
        answer = await self.receive()
        if not isinstance(answer, EntryStatus):
            raise ControlMessageError(f"expected EntryStatus, got {type(answer).__name__}")
        return answer


def _reason(text: str) -> str:
    """Return why a handshake failed, without the words of a region's links."""
    if "did not prove" in text:
        return "it has another token"
    return "it serves another application or handle" if "this is job" in text else text
