"""`dos tls`: make and show the certificates of one store.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a certificate that was shown has expired, or is not valid yet |
| 2 | wrong usage, or refused; nothing was overwritten |
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dos_tls.authority import (
    CERTIFICATE_DAYS,
    Authority,
    CertificateFacts,
    certificates_in,
    check_names,
    facts,
)
from dos_tls.core.settings import TlsSettingsError

app = typer.Typer(no_args_is_help=True, help="Make and show the certificates of a store.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the authority.")]
Hosts = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST...",
        help="A server's host name or IP address; further names of the same server after commas: h1,10.0.0.1",
    ),
]
Days = Annotated[float, typer.Option(min=1, help="How long the certificates are valid.")]


@app.command()
def init(directory: Directory, hosts: Hosts, days: Days = CERTIFICATE_DAYS) -> None:
    """Make a private authority, a certificate for each server, and one for clients and workers.

    Example: dos tls init store-tls h1 h2 h3

    Then copy DIR/servers/HOST to each server (dos serve --tls), and DIR/client to each client (DOS_TLS). The
    key of the authority, DIR/ca.key, stays where it is: its holder can make certificates that all accept.

    Exit codes: 0 done; 2 usage, or the directory is not empty.
    """
    with _errors_end_command():
        servers = [host.split(",") for host in hosts]
        check_names(servers)
        authority = Authority.create(directory)
        made = [authority.add_server(names, days=days) for names in servers]
        made.append(authority.add_client(days=days))
    for path in made:
        print(path)


@app.command()
def add(directory: Directory, hosts: Hosts, days: Days = CERTIFICATE_DAYS) -> None:
    """Make certificates for further servers.

    Example: dos tls add store-tls h4,10.0.0.4

    Exit codes: 0 done; 2 usage, or a server has a certificate.
    """
    with _errors_end_command():
        authority = Authority(directory)
        for host in hosts:
            print(authority.add_server(host.split(","), days=days))


@app.command()
def renew(
    directory: Directory,
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST...]", help="Server, or `client`; default: all.")
    ] = None,
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Replace certificates and their keys by new ones, with the same names and of the same authority.

    Copy the files to their hosts then. A running server uses them at the next connection.

    Example: dos tls renew store-tls

    Exit codes: 0 done; 2 usage, or a certificate does not exist.
    """
    with _errors_end_command():
        authority = Authority(directory)
        for host in hosts or authority.hosts():
            print(authority.renew(host, days=days))


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A certificate, or a directory with some.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Print the names of certificates and when they expire.

    Example: dos tls show /etc/dos/tls

    Exit codes: 0 all are valid now; 1 one is not; 2 usage.
    """
    now = datetime.now(UTC)
    with _errors_end_command():
        found = [facts(one) for one in certificates_in(path)]
        if not found:
            raise TlsSettingsError(f"there is no certificate in {path}")
    for one in found:
        print(json.dumps(_as_json(one)) if as_json else _text(one, now))
    if not all(one.begins <= now <= one.ends for one in found):
        raise typer.Exit(1)


def _text(one: CertificateFacts, now: datetime) -> str:
    days = (one.ends - now).total_seconds() / 86_400
    left = "not valid yet" if now < one.begins else f"{days:.0f} days left" if days > 0 else "EXPIRED"
    names = ", ".join(one.names) or one.subject
    return f"{one.path}: {names}; until {one.ends:%Y-%m-%d %H:%M} UTC, {left}; signed by {one.issuer}"


def _as_json(one: CertificateFacts) -> dict[str, object]:
    return {
        "path": one.path,
        "subject": one.subject,
        "names": one.names,
        "begins": one.begins.isoformat(),
        "ends": one.ends.isoformat(),
        "issuer": one.issuer,
    }


@contextmanager
def _errors_end_command() -> Iterator[None]:
    try:
        yield
    except (TlsSettingsError, OSError) as error:
        print(f"dos: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
