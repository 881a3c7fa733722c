"""Decides at which address workers connect to the driver. Pure: no name is resolved."""

from urllib.parse import urlsplit

from dos_protocol.arguments import bare_host, is_loopback, is_wildcard
from spark_integration.core.session_checks import SparkMaster
from spark_integration.errors import InsecureNetworkError, WrongAddressError

LOOPBACK = "127.0.0.1"
REMEDY = (
    "pass coordinator_address, or set spark.driver.host, to the host name or IP address at which executors"
    " reach this driver"
)


def choose_addresses(
    master: SparkMaster, requested: str | None, driver_host: str | None, *, insecure: bool
) -> tuple[str, str]:
    """Return (the host to which workers connect, the host to listen on), both without brackets.

    `requested` is the address that the program chose, `driver_host` that of Spark's own driver. Raises
    InsecureNetworkError, and WrongAddressError for an address that executors elsewhere cannot reach.
    """
    if master.one_machine:
        host = bare_host(requested or LOOPBACK)
        return host, host
    if not insecure:
        raise InsecureNetworkError(
            f"{master.url} may place workers on several machines, and their links are not encrypted (both"
            " ends prove that they have the job's key, but the data can be read): set DOS_TLS, or pass"
            " insecure=True on a network that you trust"
        )
    host = bare_host(requested or driver_host or LOOPBACK)
    if is_wildcard(host):
        raise WrongAddressError(
            f"{host} means every address of the driver's own machine, so no worker can connect to it",
            remedy=REMEDY,
        )
    if is_loopback(host) and not is_loopback(urlsplit(master.url).hostname or ""):
        raise WrongAddressError(
            f"{host} is the driver's own machine on every machine, so workers that {master.url} places"
            " elsewhere cannot connect to it",
            remedy=REMEDY,
        )
    return host, "0.0.0.0"  # noqa: S104  # confirmed, or TLS
