"""A private authority, and the certificates of one store: `dos tls`. The library `cryptography` makes them.

    DIR/ca.pem, ca.key                     the authority; its key stays on the machine where it was made
    DIR/servers/HOST/{ca,cert,key}.pem     for `dos serve --tls` on that host
    DIR/client/{ca,cert,key}.pem           for DOS_TLS of clients, drivers, workers and entry points

Certificates of servers have the names and IP addresses of their hosts. That of clients has `WORKER_NAME`
instead, so its holder cannot pose as a server. All keys are of the curve P-256.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dos_tls.core.settings import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE, WORKER_NAME, TlsSettingsError
from dos_tls.files import replace_durably

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 397
CLIENT: Final = "client"
SERVERS: Final = "servers"
_AUTHORITY_KEY: Final = "ca.key"
_EARLIER: Final = timedelta(hours=1)
"""How far a certificate is valid before now: clocks of other machines may be behind."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    path: str
    subject: str
    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    issuer: str


class Authority:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            pem, key = (directory / name for name in (AUTHORITIES_FILE, _AUTHORITY_KEY))
            self._certificate = x509.load_pem_x509_certificate(pem.read_bytes())
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise TlsSettingsError(
                f"{directory} holds no authority: {error}", remedy="make one: dos tls init DIR HOST..."
            ) from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TlsSettingsError(f"{key} is not a key that `dos tls init` made")
        self._key = loaded

    @classmethod
    def create(cls, directory: Path, *, days: int = AUTHORITY_DAYS) -> "Authority":
        """Make an authority in a new or empty directory."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(directory.iterdir()):
            raise TlsSettingsError(
                f"{directory} is not empty, and nothing is overwritten",
                remedy="use another directory; dos tls add and renew change an existing one",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("DOS authority " + os.urandom(4).hex())
        builder = _builder(name, name, key.public_key(), timedelta(days=days), None)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        replace_durably(directory / _AUTHORITY_KEY, _key_pem(key))
        replace_durably(directory / AUTHORITIES_FILE, _pem(builder.sign(key, hashes.SHA256())))
        return cls(directory)

    def add_server(
        self, names: Sequence[str], *, days: float = CERTIFICATE_DAYS, begins: datetime | None = None
    ) -> Path:
        """Make the certificate of a server with these names and IP addresses. Return its directory, named
        like the first.
        """
        check_names([names])
        directory = self.directory / SERVERS / names[0]
        if directory.exists():
            raise TlsSettingsError(f"{directory} exists, and nothing is overwritten", remedy="dos tls renew")
        self._issue(directory, names, days, begins)
        return directory

    def add_client(self, *, days: float = CERTIFICATE_DAYS, begins: datetime | None = None) -> Path:
        """Make the certificate of clients and workers. Return its directory."""
        directory = self.directory / CLIENT
        if directory.exists():
            raise TlsSettingsError(f"{directory} exists, and nothing is overwritten", remedy="dos tls renew")
        self._issue(directory, (WORKER_NAME,), days, begins)
        return directory

    def renew(self, host: str, *, days: float = CERTIFICATE_DAYS, begins: datetime | None = None) -> Path:
        """Replace the certificate and the key of a host, or of `client`. Return its directory."""
        directory = self.directory / CLIENT if host == CLIENT else self.directory / SERVERS / host
        names = facts(directory / CERTIFICATE_FILE).names
        self._issue(directory, names, days, begins)
        return directory

    def hosts(self) -> list[str]:
        found = sorted(path.name for path in (self.directory / SERVERS).glob("*") if path.is_dir())
        return [*found, *([CLIENT] if (self.directory / CLIENT).is_dir() else [])]

    def _issue(self, directory: Path, names: Sequence[str], days: float, begins: datetime | None) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        for_worker = tuple(names) == (WORKER_NAME,)
        builder = _builder(
            _name("DOS client" if for_worker else names[0]),
            self._certificate.subject,
            key.public_key(),
            timedelta(days=days),
            begins,
        )
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        # a worker accepts links of other workers, and connects to them and to servers
        roles = [ExtendedKeyUsageOID.SERVER_AUTH] + [ExtendedKeyUsageOID.CLIENT_AUTH] * for_worker
        builder = builder.add_extension(x509.ExtendedKeyUsage(roles), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        for folder in (directory.parent, directory):  # `parents` would not give the mode to the first
            folder.mkdir(exist_ok=True, mode=0o700)
        replace_durably(directory / KEY_FILE, _key_pem(key))
        replace_durably(directory / CERTIFICATE_FILE, _pem(builder.sign(self._key, hashes.SHA256())))
        replace_durably(directory / AUTHORITIES_FILE, _pem(self._certificate))


def check_names(servers: Sequence[Sequence[str]]) -> None:
    """Raise TlsSettingsError unless these can be the names of as many servers. Nothing is made."""
    for names in servers:
        _alternatives(names)
    first = [names[0] for names in servers]
    if len(set(first)) != len(first):
        raise TlsSettingsError(f"a server is named twice: {' '.join(first)}")


def facts(path: Path) -> CertificateFacts:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsSettingsError(f"{path} holds no certificate: {error}") from error
    names: list[str] = []
    with suppress(x509.ExtensionNotFound):
        extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [str(one.value) for one in extension.value]
    return CertificateFacts(
        str(path),
        found.subject.rfc4514_string(),
        tuple(names),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        found.issuer.rfc4514_string(),
    )


def last_expiry(path: Path) -> datetime:
    """Return when the last of the certificates in a file expires. Raises TlsSettingsError."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsSettingsError(f"{path} holds no certificate: {error}") from error
    return max(one.not_valid_after_utc for one in found)


def certificates_in(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(
            one for one in path.rglob("*.pem") if one.name in (AUTHORITIES_FILE, CERTIFICATE_FILE)
        )
    else:
        yield path


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
    begins: datetime | None,
) -> x509.CertificateBuilder:
    ends = (begins or datetime.now(UTC)) + lifetime
    begins = begins or datetime.now(UTC) - _EARLIER
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name, re.ASCII) is None:
                raise TlsSettingsError(f"not a host name or IP address: {name!r}") from None
            found.append(x509.DNSName(name))
    return found


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
