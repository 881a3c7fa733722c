"""What is merged: the replicas, the columns of their rows, and what follows if rows differ or are missing.
This file checks what the user has given. `MergedLogSource` and `dataflow.merged` use it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from checkpoint import check_input_name, output_chain
from dataflow.errors import SchemaError
from dataflow.operators.event_time import check_time_column
from dataflow.schema import parse_schema
from dos_client import parse_url
from dos_protocol.names import check_name


class ReplicaPlace(NamedTuple):
    """Where a replica is: the name of its site, the URL of the store there, and its region and sink."""

    site: str
    url: str
    region: str
    sink: str


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """What is merged. time: of several columns, the later time counts. compare: 1 compares the rows of each
    second of event time, n of each n-th, 0 none. on_missing: "wait" or "accept". on_difference: "stop" or
    "detach". `merge_order` makes one from what a user has given, and describes these values.
    """

    places: tuple[ReplicaPlace, ...]
    schema: pa.Schema
    time: tuple[str, ...]
    compare: int = 0
    on_missing: str = "wait"
    on_difference: str = "stop"


def merge_order(
    sites: Mapping[str, str],
    region: str,
    sink: str,
    schema: "str | pa.Schema",
    *,
    time: "str | Sequence[str]" = "at",
    compare: "str | int" = 16,
    on_missing: str = "wait",
    on_difference: str = "stop",
) -> MergeOrder:
    """Return what is merged. sites: site -> URL of its store. compare: "all", "off", or one second in n.

    on_missing: what follows if no replica that can be reached has all rows: "wait", or "accept", which
    continues without them. on_difference: what follows if replicas give different rows or run different
    graphs: "stop", or "detach", which continues with those that agree if they are more than half of at least
    three. Raises BadNameError, SchemaError, and BadUrlError of a URL that is not valid.
    """
    check_name(output_chain(sink))
    check_name(region)
    times = (time,) if isinstance(time, str) else tuple(time)
    every = {"all": 1, "off": 0}.get(compare, compare) if isinstance(compare, str) else compare
    if not isinstance(every, int) or every < 0:
        raise SchemaError(f"compare must be 'all', 'off' or a number above 0, not {compare!r}")
    if on_missing not in ("wait", "accept"):
        raise SchemaError(f"on_missing must be 'wait' or 'accept', not {on_missing!r}")
    if on_difference not in ("stop", "detach"):
        raise SchemaError(f"on_difference must be 'stop' or 'detach', not {on_difference!r}")
    if not sites:
        raise SchemaError("a merge needs at least one site: sites={'purdue': 'dos://...'}")
    for site, url in sites.items():
        check_input_name("a site", site)
        parse_url(url)
    columns = parse_schema(schema)
    for column in times:
        check_time_column(column, columns)
    places = tuple(ReplicaPlace(site, url, region, sink) for site, url in sorted(sites.items()))
    return MergeOrder(places, columns, times, every, on_missing, on_difference)
