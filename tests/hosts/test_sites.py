"""Three sites with replicas, and the faults of a site. The exit has each row once, as without a fault."""

import time
from collections.abc import Iterator

import pytest

from tests.hosts.sites import Sites, open_sites

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with open_sites(tmp_path_factory.mktemp("sites")) as sites:
        yield sites


def test_no_fault(sites: Sites) -> None:
    with sites.sending():
        time.sleep(4)
    found = sites.all_arrive()
    late = sorted(pair.arrived_s - pair.sent_s for pair in found)
    print(len(found), late[0], late[len(late) // 2], late[-1])
