"""The errors of TLS, each with the end that is at fault and the remedy.

`TlsError` is a broken connection, because nothing can be sent on it. Another attempt fails in the same way
until a person has changed certificates or settings, except after `TlsBusyError` and `TlsTruncatedError`.
"""

from dos_protocol.errors import BrokenConnectionError


class TlsError(BrokenConnectionError):
    """TLS failed on a connection. No byte of a request was accepted."""

    remedy = "compare the certificates of both ends: dos tls show"


class TlsSettingsError(TlsError):
    """The settings of this end are incomplete, or a file that they name cannot be used. Nothing was sent.

    It is a broken connection, so that reconnecting clients and workers try again: files may be replaced
    meanwhile.
    """


class CertificateExpiredError(TlsError):
    """The peer's certificate has expired."""

    remedy = "renew it (dos tls renew) and copy it there; a running server uses it at the next connection"


class CertificateNotYetValidError(TlsError):
    """The peer's certificate is not valid yet."""

    remedy = "compare the clocks of both machines with the certificate's dates (dos tls show)"


class CertificateNameError(TlsError):
    """The peer's certificate is for another name."""

    remedy = "connect by a name of the certificate (dos tls show), or make one with this name (dos tls add)"


class CertificateAuthorityError(TlsError):
    """An authority that this end does not trust signed the peer's certificate."""

    remedy = "use the ca.pem of the store's own authority at both ends"


class CertificateRequiredError(TlsError):
    """The server accepts clients with a certificate only, and this client has none."""

    remedy = "set DOS_TLS to the client directory that `dos tls init` made"


class CertificateRejectedError(TlsError):
    """The peer does not accept this end's certificate."""

    remedy = "renew it if it has expired (dos tls show), and use certificates of one authority at both ends"


class PlainTextPeerError(TlsError):
    """This end uses TLS and the peer sends plain text. This end sent nothing that was not encrypted."""

    remedy = (
        "use TLS there (dos serve --tls, DOS_TLS), or use plain text here: unset DOS_TLS, or leave TLS out of"
        " the context"
    )


class TlsHandshakeError(TlsError):
    """The handshake failed for another reason, which the message states."""


class TlsBusyError(TlsHandshakeError):
    """The peer cannot serve one more connection now. Another attempt may succeed."""

    remedy = "try again later"


class TlsTruncatedError(TlsError):
    """The connection ended without the end mark of TLS, so bytes may be missing."""

    remedy = BrokenConnectionError.remedy
