"""`dos serve`: runs one server in the foreground.

| exit code | meaning |
|---|---|
| 0 | stopped by SIGTERM or SIGINT |
| 1 | the data directory was removed or moved while it was served, or its group log failed |
| 2 | usage error, or refused to start: the data, a file of settings, or the address cannot be used |
"""

import ctypes
import errno
import json
import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import trio
import typer

from dos_monitoring import HealthServer, LogChoice, begin_logs
from dos_protocol.arguments import (
    address_text,
    is_loopback,
    parse_listen,
    parse_rate,
    parse_span,
    refuse_weak,
    token_in,
)
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from dos_protocol.limits import MIB
from dos_protocol.names import id_text
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.core.vocabulary import DiskFailure
from dos_server.disk import failure_of, path_argument
from dos_server.embedded import DataDirectoryInUseError, OpenServer
from dos_server.figures import ServerFigures, registry_of
from dos_server.limits import descriptors_min, log_bytes_default
from dos_server.server import audit_log, write_audit_to
from dos_server.watched_files import Content, Settings, WatchedFile, watched_quotas, watched_tokens
from dos_tls import (
    AUTHORITIES,
    CERTIFICATE,
    DIRECTORY,
    KEY,
    ServerContext,
    TlsSettings,
    TlsSettingsError,
    raise_file_limit,
    settings_of,
    tls_of_environment,
    warn_if_open,
)

# --- The allocator of the C library ------------------------------------------------------------------------


logger = logging.getLogger("dos.server")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 64 * MIB
_FROM_HEAP_BYTES: Final = 4 * MIB


def keep_large_blocks() -> None:
    """Take blocks up to 4 MiB from one heap shared by all threads, and keep 64 MiB of it when it is free.

    Without glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = (
        (_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_ARENA_MAX, 1),
    )
    if mallopt is None or not all(mallopt(name, value) for name, value in settings):
        logger.info("the C library has no mallopt: large answers are slower")


# --- The command -------------------------------------------------------------------------------------------


DEFAULT_ADDRESS = "127.0.0.1:9999"

ScrubRate = Annotated[
    str,
    typer.Option(
        help="Maximum rate of the scrub, which rereads all objects to find bit rot; 0 disables it.",
        metavar="RATE",
    ),
]
ScrubEvery = Annotated[
    str,
    typer.Option(
        help="Minimum time between the starts of two scrub rounds over all objects.",
        metavar="TIME",
    ),
]
GroupLog = Annotated[
    int,
    typer.Option(
        metavar="MIB",
        min=0,
        max=1024,
        envvar="DOS_GROUP_LOG",
        help="Size in MiB of the group log, whose one sync acknowledges the small appends of all objects;"
        " 0: no log, and each object has its own syncs.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow an address that other machines can reach although TLS, or a token or certificates of"
        " clients, are missing: trust the network.",
    ),
]
TokensFile = Annotated[
    Path | None,
    typer.Option(
        help="File of tokens with limited rights, as `dos token add` writes it. It is read again when it"
        " changes.",
        metavar="FILE",
    ),
]
QuotasFile = Annotated[
    Path | None,
    typer.Option(
        help="File of limits for the directories of prefixes, as `dos quota set` writes it. It is read again"
        " when it changes. Disables version 0.",
        metavar="FILE",
    ),
]
AuditLog = Annotated[
    Path | None,
    typer.Option(
        help="Append to this file, as lines of JSON, what is repaired, reconfigured, or refused to a token.",
        metavar="FILE",
    ),
]
Reserve = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Disk space in MiB kept free for claims, removals and restarts: an append that would use it"
        " is refused. Default 16, and at most a sixteenth of the disk.",
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option(
        help="Serve /metrics for Prometheus, /healthz and /readyz at http://HOST:PORT, without a password.",
        metavar="HOST:PORT",
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        help="Accept TLS only, with ca.pem, cert.pem and key.pem of this directory (`dos tls init`).",
        metavar="DIR",
    ),
]
TlsCa = Annotated[Path | None, typer.Option(help="Authorities of clients' certificates, instead of ca.pem.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate of this server, instead of cert.pem.")]
TlsKey = Annotated[Path | None, typer.Option(help="Key of that certificate, instead of key.pem.")]
TlsClientAuth = Annotated[
    bool,
    typer.Option(
        "--tls-client-auth", help="Accept only clients with a certificate of one of the authorities."
    ),
]
DataDirectory = Annotated[
    Path,
    typer.Option(
        parser=path_argument,
        metavar="DIR",
        help="Directory that holds this server's objects; created if missing.",
    ),
]


def serve(
    data: DataDirectory,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to listen on; port 0 picks a free port.")
    ] = DEFAULT_ADDRESS,
    insecure: Insecure = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File whose first line is the token that clients must present; must not be blank."),
    ] = None,
    tokens: TokensFile = None,
    quotas: QuotasFile = None,
    audit_log: AuditLog = None,
    metrics: MetricsAddress = None,
    tls: Tls = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_auth: TlsClientAuth = False,
    no_v0: Annotated[
        bool,
        typer.Option(
            "--no-v0",
            help="Disable version 0, the protocol of the original service. Implied by tokens.",
        ),
    ] = False,
    reserve_mib: Reserve = None,
    group_log: GroupLog = log_bytes_default // MIB,
    scrub_rate: ScrubRate = "8MB/s",
    scrub_every: ScrubEvery = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="Print the startup line as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log progress to standard error.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines of JSON, for programs.")] = False,
) -> None:
    """Serve the objects kept in a directory, until SIGTERM or SIGINT.

    Example: dos serve --data /var/lib/dos --listen 127.0.0.1:9999
    """
    begin_logs(LogChoice(as_json=log_json, level="INFO" if verbose else "WARNING"))
    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        _refuse(str(error))
    if token_file is not None and tokens is not None:
        _refuse("pass --token-file or --tokens, not both: a file of tokens can have one with all rights")
    context = _tls_context(tls, tls_ca, tls_cert, tls_key, client_auth=tls_client_auth)
    token, granted = _read_token(token_file), _read_settings(watched_tokens, tokens)
    limited = _read_settings(watched_quotas, quotas)
    if not is_loopback(host):
        has_token = bool(token) or granted is not None
        _check_safety(host, insecure=insecure, tls=context, has_token=has_token)
    _begin_audit(audit_log)
    figures = None if metrics is None else ServerFigures(version("dos-journal"))
    _raise_file_limit()
    keep_large_blocks()
    opened = _open(
        data,
        host,
        port,
        token=token,
        tokens=granted,
        quotas=limited,
        figures=figures,
        version0=not no_v0,
        reserve_bytes=None if reserve_mib is None else reserve_mib * MIB,
        scrub=_scrub_plan(scrub_rate, scrub_every),
        log_bytes=group_log * MIB,
        tls=context,
    )
    _refuse_hidden_loopback(opened, host)
    with _metrics_served(opened, metrics, figures, None if context is None else context.settings):
        _run(opened, data, as_json=as_json)


def _tls_context(
    directory: Path | None, ca: Path | None, certificate: Path | None, key: Path | None, *, client_auth: bool
) -> ServerContext | None:
    """Return the TLS context of the options; None: plain text. Exit if they are unusable."""
    given = {AUTHORITIES: ca, CERTIFICATE: certificate, KEY: key, DIRECTORY: directory}
    variables = {name: str(path.absolute()) for name, path in given.items() if path is not None}
    try:
        settings = settings_of(variables)
        if settings is not None:
            return ServerContext(settings, client_certificates=client_auth)
        if tls_of_environment() is not None:
            _refuse(
                "DOS_TLS is set, but this server would speak plain text: pass --tls DIR, or unset DOS_TLS"
            )
    except TlsSettingsError as error:
        _refuse(str(error))
    if client_auth:
        _refuse("--tls-client-auth needs --tls DIR")
    return None


def _check_safety(host: str, *, insecure: bool, tls: ServerContext | None, has_token: bool) -> None:
    if tls is not None and (has_token or tls.client_certificates):
        return
    lacks = "without TLS" if tls is None else "without a token or certificates of clients"
    if not insecure:
        remedy = "--tls DIR with --token-file, --tokens or --tls-client-auth"
        _refuse(
            f"{host} can be reached from other machines: pass {remedy}; or --insecure, or listen on 127.0.0.1"
        )
    logging.getLogger("dos.server").warning("listening on %s %s, because of --insecure", host, lacks)


def _open(data: Path, host: str, port: int, **settings: Any) -> OpenServer:
    try:
        return OpenServer(data, host, port, **settings)
    except DataDirectoryInUseError as error:
        _refuse(f"{error}: stop it first, or use another directory")
    except CorruptDataError as error:
        _refuse(f"{data} is not the complete data of one server: {error}")
    except LocalProtocolError as error:
        _refuse(f"{data}: {error}")
    except OSError as error:
        if failure_of(error) is DiskFailure.NO_SPACE:
            _refuse(f"no space is left for a start on {data}: free some and start again; nothing is lost")
        if error.errno == errno.EADDRINUSE:
            place = address_text(host, port)
            _refuse(
                f"cannot listen on {place}: another program does; stop it, or pass --listen with another port"
            )
        _refuse(f"cannot serve {data} at {address_text(host, port)}: {error}")


@contextmanager
def _metrics_served(
    opened: OpenServer, address: str | None, figures: ServerFigures | None, tls: TlsSettings | None
) -> Iterator[None]:
    """Serve the figures over HTTP, if an address is given. Exit if it cannot be used."""
    if address is None or figures is None:
        yield
        return
    try:
        host, port = parse_listen(address, "--metrics")
        why = {"hangs": figures.hangs, "not_ready": figures.not_ready}
        served = HealthServer(registry_of(figures), host, port, tls=lambda: tls, **why)
    except (ValueError, OSError) as error:
        opened.shut()
        _refuse(f"cannot serve metrics at {address}: {error}")
    print(f"metrics: http://{address_text(*served.address)}/metrics", file=sys.stderr, flush=True)
    with closing(served):
        yield


def _refuse_hidden_loopback(opened: OpenServer, host: str) -> None:
    """Exit if the name of a host means loopback here, as Debian writes it into /etc/hosts."""
    address, _ = opened.address
    if is_loopback(address) and not is_loopback(host):
        opened.shut()
        _refuse(
            f"{host} is {address} on this machine, which no other machine can reach: pass the"
            " address of a network interface, or [::] for all of them"
        )


def _run(opened: OpenServer, data: Path, *, as_json: bool) -> None:
    try:
        trio.run(_until_signal, opened, data, as_json)
    finally:
        opened.shut()
    if opened.server.gone:
        _refuse(opened.server.gone, code=1)


async def _until_signal(opened: OpenServer, data: Path, as_json: bool) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_to_the_end, opened, nursery.cancel_scope)
            _announce(opened, data, as_json=as_json)
            async for number in signals:
                if number != signal.SIGHUP:
                    break
                text = (
                    "SIGHUP: nothing to do; files of tokens, quotas and TLS are read again when they change"
                )
                logging.getLogger("dos.server").info(text)
            nursery.cancel_scope.cancel()


async def _serve_to_the_end(opened: OpenServer, scope: trio.CancelScope) -> None:
    await opened.server.serve(opened.listener)
    scope.cancel()


def _announce(opened: OpenServer, data: Path, *, as_json: bool) -> None:
    """Print one line once the server listens; programs that start a server wait for this line."""
    address = address_text(*opened.address)
    server_id = id_text(opened.server.server_id)
    if as_json:
        line = json.dumps({"data": str(data), "address": address, "server_id": server_id})
    else:
        line = f"dos: serving {data} at {address}, server id {server_id}"
    print(line, flush=True)


def _read_token(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        warn_if_open(path, "the token file")
        token = token_in(path.read_bytes(), str(path))
        refuse_weak(token, str(path))
        return token
    except OSError as error:
        _refuse(f"token file {path} cannot be read: {error.strerror}")
    except LocalProtocolError as error:
        _refuse(str(error))


def _read_settings(
    read: Callable[[Path], WatchedFile[Content, Settings]], path: Path | None
) -> WatchedFile[Content, Settings] | None:
    if path is None:
        return None
    try:
        if read is watched_tokens:
            warn_if_open(path, "the tokens file")
        return read(path)
    except OSError as error:
        _refuse(f"{path} cannot be read: {error.strerror}")
    except LocalProtocolError as error:
        _refuse(str(error))


def _begin_audit(path: Path | None) -> None:
    audit_log.setLevel(logging.INFO)
    try:
        if path is not None:
            write_audit_to(path)
    except OSError as error:
        _refuse(f"audit log {path} cannot be written: {error.strerror}")


def _scrub_plan(rate: str, every: str) -> ScrubPlan:
    try:
        return ScrubPlan(parse_rate(rate), parse_span(every), random.random())  # noqa: S311 - spreads work
    except ValueError as error:
        _refuse(str(error))


def _raise_file_limit() -> None:
    """Raise the limit of open files. Exit if it stays so low that appends would wait for descriptors."""
    soft = raise_file_limit(4_096)
    if soft < descriptors_min:
        _refuse(f"{soft} files may be open, at least {descriptors_min} are needed: raise `ulimit -n`")


def _refuse(text: str, code: int = 2) -> NoReturn:
    print(f"dos serve: {text}", file=sys.stderr)
    raise typer.Exit(code)
