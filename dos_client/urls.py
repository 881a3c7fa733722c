"""Parse and format URLs: `dos://host[:port][,host2[:port]...][/directory[/object]]`. Host names are not
resolved.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.errors import BadUrlError
from dos_client.limits import default_port
from dos_protocol.arguments import bare_host, is_loopback, is_wildcard
from dos_protocol.limits import address_bytes_max, store_members_max
from dos_protocol.names import check_name

SCHEME: Final = "dos://"
_HOST: Final = re.compile(
    r"\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII
)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
REACHABLE: Final = "name the server by the host name or IP address at which other machines reach it"
_REMEDY: Final = "write it as dos://host[:port][,host[:port]...][/directory[/object]]"


@dataclass(frozen=True, slots=True)
class DosUrl:
    """A parsed URL. `servers`: at least one address, no duplicates. `object` is set only with `directory`."""

    servers: tuple[str, ...]
    directory: str | None = None
    object: str | None = None

    def __str__(self) -> str:
        parts = [",".join(self.servers)]
        parts += [part for part in (self.directory, self.object) if part is not None]
        return SCHEME + "/".join(parts)


def parse_url(url: "str | DosUrl") -> DosUrl:
    """Parse a URL. Raises BadUrlError, or BadNameError for an invalid directory or object name."""
    if isinstance(url, DosUrl):
        return url
    if not isinstance(url, str):
        raise BadUrlError(f"a URL must be text, got {url!r:.60}", remedy=_REMEDY)
    if not url.startswith(SCHEME):
        raise BadUrlError(f"a URL must begin with {SCHEME}, got {url[:60]!a}", remedy=_REMEDY)
    servers_text, *path = url[len(SCHEME) :].split("/")
    servers = tuple(parse_address(text) for text in servers_text.split(","))
    if len(set(servers)) != len(servers):
        raise BadUrlError(f"the URL names a server twice: {servers_text}", remedy=_REMEDY)
    if len(servers) > store_members_max:
        raise BadUrlError(
            f"a URL names at most {store_members_max} servers, got {len(servers)}", remedy=_REMEDY
        )
    if path and path[-1] == "":
        path.pop()
    if len(path) > 2:
        raise BadUrlError(
            f"a path has at most a directory and an object: {'/'.join(path)[:60]!a}", remedy=_REMEDY
        )
    names = [check_name(part) for part in path]
    return DosUrl(servers, names[0] if names else None, names[1] if len(names) == 2 else None)


def parse_store_url(url: "str | DosUrl") -> DosUrl:
    """Parse the URL of a store, which names servers only. Raises BadUrlError."""
    parsed = parse_url(url)
    if parsed.directory is not None:
        raise BadUrlError(
            f"the URL of a store names servers only, got the directory {parsed.directory!r}, too",
            remedy=f"write it as {DosUrl(parsed.servers)}; a region has the name of its graph, or name=",
        )
    return parsed


def parse_address(text: str) -> str:
    """Return the address `host:port`, with the default port if the text has none. Raises BadUrlError."""
    host, port = _split(text)
    if _HOST.fullmatch(host) is None or len(host) > address_bytes_max - 6:
        raise BadUrlError(f"not a host name or IP address: {text[:60]!a}", remedy=_REMEDY)
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65535:
        raise BadUrlError(f"the port must be a number from 1 to 65535: {text[:60]!a}", remedy=_REMEDY)
    if is_wildcard(bare_host(host)):
        raise BadUrlError(
            f"{host} means every address of a server's own machine, nobody can connect to it: {text[:60]!a}",
            remedy=REACHABLE,
        )
    return f"{host.lower()}:{int(port)}"


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return bare_host(host), int(port)


def loopback_among(addresses: Iterable[str]) -> str:
    """Return an address that only its own machine can reach, if others are elsewhere; "" if none."""
    loopback: dict[bool, list[str]] = {True: [], False: []}
    for address in addresses:
        loopback[is_loopback(split_address(address)[0])].append(address)
    return loopback[True][0] if loopback[True] and loopback[False] else ""


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        return host + bracket, rest.removeprefix(":") if rest else str(default_port)
    host, colon, port = text.partition(":")
    return host, port if colon else str(default_port)
