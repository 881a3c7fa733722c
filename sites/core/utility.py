"""How useful each stream is for the results: its weight in its port, times the utility of its reader. Pure.

Hwang, Cetintemel, Zdonik, section V-B. A reader gives a row from the stream that is first weight 1, the same
row from the second one 1/2, and so on. A stream has the share of its weight in its port. The utility of an
exit is 1, that of a replica the sum over its outputs, so utilities are computed from the exits upstream.
"""

from collections.abc import Iterable, Mapping

from sites.core.deployment import Deployment, RegionReplica, StreamReplica, Streams


def weight(rows_by_rank: Iterable[int]) -> float:
    """Return the weight of a stream that gave so many rows first, so many second, and so on."""
    return sum(rows / rank for rank, rows in enumerate(rows_by_rank, start=1))


def utilities(
    deployment: Deployment, streams: Streams, weights: Mapping[StreamReplica, float]
) -> dict[StreamReplica, float]:
    """Return the utility of each stream. If no stream of a port has a weight, they have equal shares."""
    inputs = dict[RegionReplica, list[StreamReplica]]()
    outputs = dict[RegionReplica, list[StreamReplica]]()
    for stream in sorted(streams):
        inputs.setdefault(stream.reader, []).append(stream)
        outputs.setdefault(stream.sender, []).append(stream)
    upstream = {node: rank for rank, node in enumerate(reversed(deployment.order), start=1)}
    found = dict[StreamReplica, float]()
    for reader in sorted(inputs, key=lambda one: (upstream.get(one.node, 0), one)):
        own = 1.0 if reader.node not in upstream else sum(found[one] for one in outputs.get(reader, ()))
        for node in deployment.senders[reader.node]:
            port = [one for one in inputs[reader] if one.sender.node == node]
            total = sum(weights.get(one, 0.0) for one in port)
            for one in port:
                found[one] = own * (weights.get(one, 0.0) / total if total else 1 / len(port))
    return found
