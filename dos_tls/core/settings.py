"""Which files an end of a TLS connection uses, and the named errors: whose fault, and the remedy. Pure.

All files are PEM, named by path and read when a connection begins, so a new certificate needs no restart.
`TlsError` is a broken connection. Another attempt fails in the same way until a person has changed
certificates or settings, except after `TlsBusyError` and `TlsTruncatedError`.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dos_protocol.errors import BrokenConnectionError

DIRECTORY: Final = "DOS_TLS"
AUTHORITIES: Final = "DOS_TLS_CA"
CERTIFICATE: Final = "DOS_TLS_CERT"
KEY: Final = "DOS_TLS_KEY"
VARIABLES: Final = (DIRECTORY, AUTHORITIES, CERTIFICATE, KEY)

AUTHORITIES_FILE: Final = "ca.pem"
CERTIFICATE_FILE: Final = "cert.pem"
KEY_FILE: Final = "key.pem"

WORKER_NAME: Final = "worker.dos.internal"
"""The name in the certificate of clients, workers and coordinators. A link verifies it instead of a host
name: workers start on any host, and each proves with the job's key that it belongs to the job."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    authorities: str
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.authorities:
            raise TlsSettingsError(
                "TLS needs the certificates of the authorities to trust",
                remedy=f"set {DIRECTORY} to a directory that `dos tls init` made, or {AUTHORITIES} to a file",
            )
        if bool(self.certificate) != bool(self.key):
            raise TlsSettingsError(
                "TLS needs a certificate together with its key",
                remedy=f"set both of {CERTIFICATE} and {KEY}, or neither",
            )

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(path for path in (self.authorities, self.certificate, self.key) if path)

    def with_absolute_paths(self, here: str) -> "TlsSettings":
        """Return the same files, with paths that do not depend on the current directory, which is `here`."""
        paths = (self.authorities, self.certificate, self.key)
        return TlsSettings(*(path and posixpath.normpath(posixpath.join(here, path)) for path in paths))

    def as_variables(self) -> dict[str, str]:
        """Return the environment variables that mean these settings."""
        values = {AUTHORITIES: self.authorities, CERTIFICATE: self.certificate, KEY: self.key}
        return {name: value for name, value in values.items() if value}


def directory_settings(directory: str) -> TlsSettings:
    """Return the settings for a directory that `dos tls init` made for one end."""
    base = directory.rstrip("/") or "/"
    return TlsSettings(*(f"{base}/{name}" for name in (AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE)))


def settings_of(variables: Mapping[str, str]) -> TlsSettings | None:
    """Return the settings that environment variables mean; None if none is set: plain text. Raises
    TlsSettingsError if they are incomplete, or one is empty, which is more often a mistake than a wish for
    plain text.
    """
    given = {name: variables[name] for name in VARIABLES if name in variables}
    if not given:
        return None
    for name, value in given.items():
        if not value:
            raise TlsSettingsError(
                f"{name} is set, but empty", remedy="name a file or directory, or unset it"
            )
    base = directory_settings(given[DIRECTORY]) if DIRECTORY in given else None
    own = (given.get(CERTIFICATE, ""), given.get(KEY, ""))
    if own == ("", "") and base is not None:
        own = base.certificate, base.key
    return TlsSettings(given.get(AUTHORITIES, base.authorities if base else ""), *own)


class TlsError(BrokenConnectionError):
    """TLS failed on a connection. No byte of a request was accepted."""

    remedy = "compare the certificates of both ends: dos tls show"


class TlsSettingsError(TlsError):
    """The settings are incomplete, or a file cannot be used. Nothing was sent. Clients and workers try again:
    files may be replaced.
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


HANDSHAKE: Final = 22
ALERT: Final = 21
"""The first byte of a record. Whatever else a peer begins with is not TLS."""

_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NAMES: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""
_AUTHORITIES: Final = (2, 18, 19, 20, 21)
"""The issuer is missing, or is not one that this end trusts."""

_REJECTED: Final = {
    "ALERT_CERTIFICATE_EXPIRED": "because it has expired by the clock there",
    "ALERT_UNKNOWN_CA": "because it does not trust the authority that signed it",
    "ALERT_BAD_CERTIFICATE": "because it is not for the expected name, not valid yet, or damaged",
    "ALERT_CERTIFICATE_UNKNOWN": "because it could not be verified",
    "ALERT_CERTIFICATE_REVOKED": "because it was revoked",
    "ALERT_UNSUPPORTED_CERTIFICATE": "because its type or purpose is not supported",
}
_BUSY: Final = "ALERT_INTERNAL_ERROR"
BUSY_ALERT: Final = bytes((ALERT, 3, 3, 0, 2, 2, 80))
"""The alert `internal_error`, before any handshake: this end cannot serve one more connection now."""


def failure_of(
    peer: str, reason: str, verify_code: int, text: str, *, server_side: bool, name: str
) -> TlsError:
    """Return the named error for a failure that OpenSSL reported. `verify_code`: of a verification, or 0.
    `name`: the name that the peer's certificate must have; "" if any is accepted.
    """
    whose = f"the certificate of {'the client ' if server_side else ''}{peer}"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        if verify_code == _EXPIRED:
            return CertificateExpiredError(f"{whose} has expired")
        if verify_code == _NOT_YET_VALID:
            return CertificateNotYetValidError(f"{whose} is not valid yet")
        if verify_code in _NAMES:
            remedy = "set DOS_TLS to the client directory there" if name == WORKER_NAME else ""
            return CertificateNameError(f"{whose} is not for the name {name}", remedy=remedy)
        if verify_code in _AUTHORITIES:
            return CertificateAuthorityError(f"{whose} was signed by an authority that is not trusted here")
        return CertificateAuthorityError(f"{whose} cannot be verified: {text}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return CertificateRequiredError(f"the client {peer} has no certificate, and this server demands one")
    if "ALERT_CERTIFICATE_REQUIRED" in reason or ("ALERT_HANDSHAKE_FAILURE" in reason and not server_side):
        return CertificateRequiredError(f"{peer} demands a certificate of clients")
    for alert, why in _REJECTED.items():
        if alert in reason:
            return CertificateRejectedError(f"{peer} rejects the certificate of this end, {why}")
    if _BUSY in reason:
        return TlsBusyError(f"{peer} cannot serve one more connection now, or has an internal error")
    return TlsHandshakeError(f"TLS with {peer} failed: {text or reason}")


@dataclass(slots=True)
class LogLimit:
    """At most one line of each kind within `pause_s` seconds. The next line counts those left out."""

    pause_s: float = 10.0
    _logged: dict[str, float] = field(default_factory=dict)
    _left_out: dict[str, int] = field(default_factory=dict)

    def text(self, kind: str, line: str, now: float) -> str | None:
        before = self._logged.get(kind)
        if before is not None and now < before + self.pause_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._logged[kind] = now
        left_out = self._left_out.pop(kind, 0)
        return f"{line} (and {left_out} more like it before)" if left_out else line
