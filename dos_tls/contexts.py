"""The settings as contexts of `ssl`. A context is read again when one of its files has changed.

TLS 1.2 is the oldest version that is accepted. Sessions are not resumed: connections are few and long.
"""

import logging
import os
import ssl
import threading
from functools import lru_cache
from typing import Final

from dos_tls.core.settings import TlsSettings
from dos_tls.errors import TlsSettingsError
from dos_tls.secret_files import warn_if_open

logger: Final = logging.getLogger("dos.tls")

_Stamp = tuple[tuple[int, int, int], ...]


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of an end that connects. Raises TlsSettingsError."""
    return _client_context(settings, _stamp(settings))


@lru_cache(maxsize=8)
def _client_context(settings: TlsSettings, _: _Stamp) -> ssl.SSLContext:
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)


class ServerContext:
    """The context of an end that accepts connections. Thread-safe.

    Raises TlsSettingsError if the files cannot be used when it is created. If they cannot be used after a
    change, the context from before stays in use and the log reports it once: the certificate and its key are
    two files, and may be replaced one after the other.
    """

    def __init__(self, settings: TlsSettings, *, client_certificates: bool) -> None:
        """`client_certificates`: accept only clients with a certificate of one of the authorities."""
        if not settings.certificate:
            raise TlsSettingsError(
                "a server needs a certificate and its key",
                remedy="pass --tls with a server's directory of `dos tls init`",
            )
        self.client_certificates = client_certificates
        self._settings = settings
        self._lock = threading.Lock()
        self._stamp = _stamp(settings)
        self._context = self._read()

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with self._lock:
            try:
                stamp = _stamp(self._settings)
            except TlsSettingsError:  # between the removal of the old file and the creation of the new one
                return self._context
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._context = self._read()
                except TlsSettingsError as error:
                    logger.warning("the changed TLS files are not used: %s", error)
                else:
                    logger.warning(
                        "the TLS files have changed; new connections use %s", self._settings.files[1]
                    )
            return self._context

    def _read(self) -> ssl.SSLContext:
        context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._settings)
        context.num_tickets = 0
        if self.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _stamp(settings: TlsSettings) -> _Stamp:
    """Return what changes with the files. Raises TlsSettingsError if one is missing."""
    stamp = []
    for path in settings.files:
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise TlsSettingsError(
                f"the TLS file {path} cannot be used: {error.strerror}",
                remedy="copy the directory of `dos tls init` to this host, under the same path on all hosts",
            ) from error
        stamp.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamp)


def _loaded(context: ssl.SSLContext, settings: TlsSettings) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    path = settings.authorities
    try:
        context.load_verify_locations(cafile=path)
        if settings.certificate:
            warn_if_open(settings.key, "the TLS key")
            path = f"{settings.certificate} with {settings.key}"
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsSettingsError(
            f"the TLS file {path} cannot be used: {getattr(error, 'reason', None) or error}",
            remedy="it must hold PEM, a key without a password, and a key that fits its certificate",
        ) from error
    return context


def _no_password() -> str:
    """Instead of a question on the terminal, which a service has not."""
    raise ValueError("the key has a password")
