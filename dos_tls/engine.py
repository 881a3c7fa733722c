"""One end of a TLS connection over bytes in memory. Its user moves the encrypted bytes.

The first byte of the peer is checked here and not by OpenSSL, whose report of plain text differs between
versions.
"""

import ssl
from typing import Final, cast

from dos_protocol.digests import Buffer
from dos_tls.core import reasons
from dos_tls.errors import PlainTextPeerError, TlsError, TlsHandshakeError, TlsTruncatedError

RECEIVE_BYTES: Final = 128 * 1024
"""A good size for reading encrypted bytes: eight records."""


class TlsEngine:
    """One end. `name`: the name that the peer's certificate must have, for the end that connects.

    `established`: the handshake is complete.
    """

    def __init__(self, context: ssl.SSLContext, peer: str, *, name: str | None) -> None:
        self.established = False
        self._peer, self._name = peer, name or ""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server_side = name is None
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=name
        )
        self._began = self._ended = self._starved = False
        self._failure: TlsError | None = None

    def received(self, data: Buffer) -> None:
        """Take encrypted bytes; none: the peer sends no more. Raises PlainTextPeerError."""
        self._starved = False
        if not len(data):
            self._ended = True
            return
        if not self._began:
            self._began = True
            if data[0] not in (reasons.HANDSHAKE, reasons.ALERT):
                self._failure = PlainTextPeerError(
                    f"{self._peer} sends plain text, but this end uses TLS",
                    remedy="set DOS_TLS there" if self._server_side else "",
                )
                raise self._failure
        self._incoming.write(data)

    def take_outgoing(self) -> bytes:
        """Return the encrypted bytes to send next, and forget them."""
        return self._outgoing.read()

    def handshake(self) -> bool:
        """Continue the handshake. Return whether it is complete. Raises TlsError.

        There may be bytes to send afterwards, also after an error: the alert that tells the peer.
        """
        if not self.established:
            self._raise_failure()
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if self._ended:
                    raise self._fail(
                        TlsHandshakeError(
                            f"{self._peer} closed the connection during the TLS handshake",
                            remedy="check that it uses TLS, and its log for the reason",
                        )
                    ) from None
            except ssl.SSLError as error:
                raise self._fail(self._named(error)) from error
            else:
                self.established = True
        return self.established

    def read_into(self, buffer: memoryview) -> int | None:
        """Decrypt into the buffer. Return how many bytes; 0 after the orderly end; None: more bytes of the
        peer are needed. Raises TlsError; an error that follows some bytes is raised by the next call.
        """
        self._raise_failure()
        if self._starved:  # OpenSSL has said so already
            return None
        count = 0
        while count < len(buffer):
            try:
                # with a buffer it returns a count; typeshed knows bytes only
                more = cast("int", self._object.read(len(buffer) - count, buffer[count:]))
            except ssl.SSLWantReadError:
                if not self._ended:
                    self._starved = True
                    break
                self._fail(TlsTruncatedError(f"the connection to {self._peer} was cut off"))
                more = -1
            except ssl.SSLZeroReturnError:
                more = 0
            except ssl.SSLError as error:
                self._fail(self._named(error))
                more = -1
            if more <= 0:
                if more < 0 and not count:
                    self._raise_failure()
                return count
            count += more
        return count or None

    def write(self, data: Buffer) -> None:
        """Encrypt bytes, to be sent after all earlier ones. Raises OSError if the connection has failed."""
        self._object.write(data)

    def end(self) -> None:
        """Mark the end of what this end sends, so that the peer can tell it from a cut."""
        if self.established and self._failure is None:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                return  # it waits for the mark of the peer, which may send for a while

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: TlsError) -> TlsError:
        self._failure = error
        return error

    def _named(self, error: ssl.SSLError) -> TlsError:
        if isinstance(error, ssl.SSLEOFError):
            return TlsTruncatedError(f"the connection to {self._peer} was cut off")
        return reasons.failure_of(
            self._peer,
            error.reason or "",
            getattr(error, "verify_code", 0),
            getattr(error, "verify_message", "") or str(error.args[-1]),
            server_side=self._server_side,
            name=self._name,
        )
