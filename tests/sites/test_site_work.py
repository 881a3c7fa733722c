"""What a site process finds out of the deployment: readers that are gone, graphs that read something else."""

import msgspec
import pytest

from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.site_work import check_ports, contexts_at, gone_readers
from sites.errors import GraphRefusedError
from tests.sites.deployments import deployed_at, described


def test_readers_that_were_removed_or_founded_again_are_found() -> None:
    description = described()
    exits = tuple(msgspec.structs.replace(one, graph="tests.sites.graphs:board") for one in description.exits)
    description = msgspec.structs.replace(description, exits=exits)
    deployed, replica = deployed_at(description, "purdue", "wisc"), RegionReplica("joined", "purdue")
    new, old = "board.board.merged.00112233", "board.board.merged.44556677"
    others = ["board.other.merged.00112233", "nightly", "board.boards.merged.44556677"]

    def gone(deployed: Deployed, **store_ids: str) -> list[str]:
        return gone_readers(description, deployed, replica, [new, old, *others], store_ids)

    assert gone(deployed, osu="00112233" + 24 * "f") == [old]
    assert gone(deployed, wisc="00112233" + 24 * "f") == [], "that of osu may be any"
    assert gone(deployed_at(description, "wisc"), osu="00112233" + 24 * "f") == [new, old]
    (exit_,) = exits
    external = (msgspec.structs.replace(exit_, graph=None),)
    description = msgspec.structs.replace(description, exits=external)
    assert gone(deployed_at(description, "wisc")) == [], "its own program reads, not `dos sites run`"


@pytest.mark.parametrize(
    ("handles", "regions"), [((), ()), (("rates",), ()), (("loads", "rates"), ()), (("loads",), ("b.x",))]
)
def test_a_graph_that_reads_something_else_than_is_described_is_refused(
    handles: tuple[str, ...], regions: tuple[str, ...]
) -> None:
    description = described()
    (context,) = contexts_at(description, deployed_at(description, "purdue"), "purdue").values()
    check_ports(context, ["loads"], [])
    with pytest.raises(GraphRefusedError, match="the graph of joined@purdue reads each"):
        check_ports(context, handles, regions)
