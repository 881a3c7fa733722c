"""The configuration of clients: the logical name of a tree, and where its gateways are. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from dos_protocol.digests import digest64

_OTHER: Final = re.compile(r"[^a-z0-9]+")
_NAME_CHARACTERS_MAX: Final = 40
_TRIES: Final = 10_000
"""A client goes round all gateways so often, without a pause: some 30 s."""
_OAUTH: Final = "dfs.webhdfs.oauth2"
_PROVIDER: Final = "org.apache.hadoop.hdfs.web.oauth2.ConfRefreshTokenBasedAccessTokenProvider"
_PASSWORD: Final = "changeit"  # noqa: S105 - of Java's own authorities, which are no secret


def logical_name(store_id: bytes, tree: str) -> str:
    """Return the host name of a tree in URLs: what Java takes for one, and one for each store and directory.

    One JVM keeps a file system for each name: with one name for two stores, the files of a query would be
    written to both.
    """
    text = _OTHER.sub("-", tree.lower()).strip("-")[:_NAME_CHARACTERS_MAX].rstrip("-") or "tree"
    return f"{text}-{digest64(store_id + tree.encode()) >> 32:08x}"


def scheme_of(*, tls: bool) -> str:
    return "swebhdfs" if tls else "webhdfs"


def client_confs(
    name: str, addresses: Sequence[str], *, tls: bool = False, key: str = "", key_at: str = ""
) -> dict[str, str]:
    """Return the Hadoop settings with which a client finds the gateways of a logical name.

    key: what clients exchange for a bearer (OAuth2), at the first address unless key_at is another one.
    """
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
        **(_key_confs(key, f"{kind}://{key_at or addresses[0]}/oauth2/token") if key else {}),
    }


def _key_confs(key: str, url: str) -> dict[str, str]:
    return {
        f"{_OAUTH}.enabled": "true",
        f"{_OAUTH}.access.token.provider": _PROVIDER,
        f"{_OAUTH}.refresh.url": url,
        f"{_OAUTH}.client.id": "dos",
        f"{_OAUTH}.refresh.token": key,  # Spark shows no value of a name with "token"
        f"{_OAUTH}.refresh.token.expires.ms.since.epoch": "0",  # of the bearer: it has none yet
    }


def spark_lines(place: str, confs: Mapping[str, str], *, truststore: str = "") -> list[str]:
    """Return the lines of spark-defaults.conf. place: the URL of the tree. truststore: for TLS, a file that
    each machine of Spark has.

    `ssl.client.truststore.*` would do for files, but not for the exchange of the key: Hadoop's client trusts
    the authorities of Java there. So the authority of the gateways is added to these.
    """
    lines = [f"# For checkpoints in {place}/"]
    if truststore:
        java = f"-Djavax.net.ssl.trustStore={truststore} -Djavax.net.ssl.trustStorePassword={_PASSWORD}"
        imported = f"-alias dos -file ca.pem -keystore {truststore} -storepass {_PASSWORD}"
        lines += [
            "# On each machine of Spark: the authorities of its Java, and ca.pem of the gateways, in a file",
            f'# cp "$JAVA_HOME/lib/security/cacerts" {truststore}',
            f"# keytool -importcert -noprompt {imported}",
            *(f"spark.{end}.defaultJavaOptions {java}" for end in ("driver", "executor")),
        ]
    return [*lines, *(f"spark.hadoop.{name} {value}" for name, value in confs.items())]
