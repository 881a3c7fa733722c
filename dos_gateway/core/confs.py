"""The configuration of clients: the logical name of a tree, and where its gateways are. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from dos_protocol.digests import digest64

_OTHER: Final = re.compile(r"[^a-z0-9]+")
_NAME_CHARACTERS_MAX: Final = 40
_TRIES: Final = 10_000
"""A client goes round all gateways so often, without a pause: some 30 s."""


def logical_name(store_id: bytes, tree: str) -> str:
    """Return the host name of a tree in URLs: what Java takes for one, and one for each store and directory.

    One JVM keeps a file system for each name: with one name for two stores, the files of a query would be
    written to both.
    """
    text = _OTHER.sub("-", tree.lower()).strip("-")[:_NAME_CHARACTERS_MAX].rstrip("-") or "tree"
    return f"{text}-{digest64(store_id + tree.encode()) >> 32:08x}"


def scheme_of(*, tls: bool) -> str:
    return "swebhdfs" if tls else "webhdfs"


def client_confs(name: str, addresses: Sequence[str], *, tls: bool = False) -> dict[str, str]:
    """Return the Hadoop settings with which a client finds the gateways of a logical name."""
    gateways = {f"g{number}": address for number, address in enumerate(addresses, 1)}
    kind = "https" if tls else "http"
    return {
        "dfs.nameservices": name,
        f"dfs.ha.namenodes.{name}": ",".join(gateways),
        **{f"dfs.namenode.{kind}-address.{name}.{one}": at for one, at in gateways.items()},
        # Any text does: it says that the name is a logical one.
        f"dfs.client.failover.proxy.provider.{name}": "ConfiguredFailoverProxyProvider",
        "dfs.http.client.retry.max.attempts": str(_TRIES),
        "dfs.http.client.failover.max.attempts": str(_TRIES),
        "dfs.webhdfs.socket.connect-timeout": "2s",
        "dfs.webhdfs.socket.read-timeout": "20s",
    }
