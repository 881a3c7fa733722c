"""The address at which workers connect to the driver: chosen right, or refused with the remedy."""

import pytest

from spark_integration.core.session_checks import choose_addresses, read_master
from spark_integration.errors import InsecureNetworkError, WrongAddressError

CLUSTER = read_master("spark://10.0.0.1:7077", cores=2)
LOCAL = read_master("local[4]", cores=4)
LOCAL_CLUSTER = read_master("spark://127.0.0.1:7077", cores=2)


@pytest.mark.parametrize(
    ("master", "requested", "driver_host", "expected"),
    [
        (LOCAL, None, "192.168.1.5", ("127.0.0.1", "127.0.0.1")),
        (LOCAL, "127.0.0.9", None, ("127.0.0.9", "127.0.0.9")),
        (CLUSTER, None, "10.0.0.9", ("10.0.0.9", "0.0.0.0")),
        (CLUSTER, "d", "10.0.0.9", ("d", "0.0.0.0")),
        (CLUSTER, None, "[fd00::9]", ("fd00::9", "0.0.0.0")),
        (LOCAL_CLUSTER, None, "127.0.0.1", ("127.0.0.1", "0.0.0.0")),
    ],
)
def test_the_address_that_the_program_or_spark_names(master, requested, driver_host, expected) -> None:  # type: ignore[no-untyped-def]
    assert choose_addresses(master, requested, driver_host, insecure=True) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "127.0.0.1", "[::1]", "localhost"])
@pytest.mark.parametrize("url", ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1:443"])
def test_an_address_that_means_another_machine_on_each_machine_is_refused(host: str, url: str) -> None:
    master = read_master(url, cores=2)
    for requested, driver_host in ((host, "10.0.0.9"), (None, host)):
        with pytest.raises(WrongAddressError, match=r"spark\.driver\.host"):
            choose_addresses(master, requested, driver_host, insecure=True)
    with pytest.raises(WrongAddressError):
        choose_addresses(master, None, None, insecure=True)


def test_clear_text_between_machines_has_to_be_confirmed() -> None:
    with pytest.raises(InsecureNetworkError, match="insecure=True"):
        choose_addresses(CLUSTER, None, "10.0.0.9", insecure=False)
