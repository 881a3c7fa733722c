"""The settings as contexts of `ssl`, TLS 1.2 or newer. A context is read again when one of its files has
changed.

An end that begins to accept connections with an expired certificate is refused. One that runs logs a warning
once a day when its certificate or its authority expires soon, or has expired.
"""

import logging
import os
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from dos_tls.core.settings import LogLimit, TlsSettings, TlsSettingsError, settings_of
from dos_tls.files import warn_if_open

logger: Final = logging.getLogger("dos.tls")

_DAY_S: Final = 86_400.0
EXPIRES_SOON_S: Final = 14 * _DAY_S
"""From then on an end warns. It is time enough for a person; what renews automatically does so earlier."""
_warnings: Final = LogLimit(_DAY_S)

_Stamp = tuple[tuple[int, int, int], ...]


class Expiry(NamedTuple):
    """When a file of the settings expires, in seconds since 1970. what: "certificate" or "authority"."""

    what: str
    path: str
    ends_s: float


def expiries(settings: TlsSettings) -> tuple[Expiry, ...]:
    """Return when this end's certificate and the last of its authorities expire. Raises TlsSettingsError."""
    return _expiries(settings, _stamp(settings))


@lru_cache(maxsize=8)
def _expiries(settings: TlsSettings, _: _Stamp) -> tuple[Expiry, ...]:
    from dos_tls.authority import facts, last_expiry  # loads `cryptography`, which plain text does not need

    found = [Expiry("authority", settings.authorities, last_expiry(Path(settings.authorities)).timestamp())]
    if settings.certificate:
        ends = facts(Path(settings.certificate)).ends
        found.insert(0, Expiry("certificate", settings.certificate, ends.timestamp()))
    return tuple(found)


def expiry_problem(settings: TlsSettings, *, within_s: float = 0.0) -> str:
    """Return which file has expired, or will within that time; "" if none. Raises TlsSettingsError."""
    now_s = time.time()
    for what, path, ends_s in expiries(settings):
        if ends_s - now_s < within_s:
            left = f"expires in {(ends_s - now_s) / _DAY_S:.1f} days" if ends_s > now_s else "has expired"
            ends = f"{datetime.fromtimestamp(ends_s, UTC):%Y-%m-%d %H:%M} UTC"
            return f"the {what} {path} {left} ({ends}): renew it (dos tls renew) and copy it here"
    return ""


def _warn_of_expiry(settings: TlsSettings) -> None:
    if problem := expiry_problem(settings, within_s=EXPIRES_SOON_S):
        kind = f"{settings} {'expired' if expiry_problem(settings) else 'soon'}"
        if _warnings.text(kind, problem, time.monotonic()) is not None:
            logger.warning("%s", problem)


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of an end that connects. Raises TlsSettingsError."""
    context = _client_context(settings, _stamp(settings))
    _warn_of_expiry(settings)
    return context


@lru_cache(maxsize=8)
def _client_context(settings: TlsSettings, _: _Stamp) -> ssl.SSLContext:
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)


class ServerContext:
    """The context of an end that accepts connections. Thread-safe. Raises TlsSettingsError if the files are
    unusable or expired.
    """

    def __init__(self, settings: TlsSettings, *, client_certificates: bool) -> None:
        if not settings.certificate:
            raise TlsSettingsError(
                "a server needs a certificate and its key",
                remedy="pass --tls with a server's directory of `dos tls init`",
            )
        self.client_certificates = client_certificates
        self.settings = settings
        self._lock = threading.Lock()
        self._stamp = _stamp(settings)
        self._context = self._read()
        if problem := expiry_problem(settings):
            raise TlsSettingsError(problem)

    def current(self) -> ssl.SSLContext:
        with self._lock:
            try:
                stamp = _stamp(self.settings)
            except TlsSettingsError:  # between the removal of the old file and the creation of the new one
                return self._context
            with suppress(TlsSettingsError):
                _warn_of_expiry(self.settings)
            if stamp != self._stamp:
                # If this fails, the earlier context stays in use: a certificate and its key may be replaced
                # one after the other.
                self._stamp = stamp
                try:
                    self._context = self._read()
                except TlsSettingsError as error:
                    logger.warning("the changed TLS files are not used: %s", error)
                else:
                    logger.warning(
                        "the TLS files have changed; new connections use %s", self.settings.files[1]
                    )
            return self._context

    def _read(self) -> ssl.SSLContext:
        context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.settings)
        context.num_tickets = 0
        if self.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _stamp(settings: TlsSettings) -> _Stamp:
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
    raise ValueError("the key has a password")


def tls_of_environment() -> TlsSettings | None:
    """Return the settings that this process uses, with absolute paths; None: plain text. Raises
    TlsSettingsError.
    """
    found = settings_of(os.environ)
    return None if found is None else found.with_absolute_paths(os.getcwd())  # noqa: PTH109 - text
