"""Which files an end of a TLS connection uses.

An end needs the certificates of the authorities that it trusts, and its own certificate with its key. A
client of a server that asks for no certificate can do without the last two. All files are PEM. They are named
by path and read when a connection begins, so a new certificate needs no restart.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dos_tls.errors import TlsSettingsError

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
    """The files of one end. `certificate` and `key` are both set or both empty."""

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
        """The paths of all files."""
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
    """Return the settings that environment variables mean; None if none of them is set, which is plain text.

    Raises TlsSettingsError if they are incomplete. An empty variable is an error: it is more often a mistake
    than a wish for plain text.
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
