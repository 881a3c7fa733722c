"""What a failure of OpenSSL means: which end is at fault, and the named error.

OpenSSL reports a reason as a word, an alert of the peer among them, and the result of a verification as a
number.
"""

from typing import Final

from dos_tls.core.settings import WORKER_NAME
from dos_tls.errors import (
    CertificateAuthorityError,
    CertificateExpiredError,
    CertificateNameError,
    CertificateNotYetValidError,
    CertificateRejectedError,
    CertificateRequiredError,
    TlsBusyError,
    TlsError,
    TlsHandshakeError,
)

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
    """Return the named error for a failure that OpenSSL reported.

    `peer`: its address. `reason`: OpenSSL's word for it. `verify_code`: the result of a verification, or 0.
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
