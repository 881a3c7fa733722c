"""Which regions of a store the parts of an application continue, and what is refused."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from checkpoint.core.applications import check_application, continued_regions
from checkpoint.core.graph_change import NO_OPTIONS, GraphOptions, Operators
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin
from checkpoint.core.region import RegionSpec
from checkpoint.errors import GraphChangeRefusedError
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.region_model import spec

ORDERS = notes(orders="source", count="count", out="sink")
CLICKS = notes(clicks="source", longest="top_k", shown="sink")
SALES = notes(sales="source", count="count", out="sink")


def last(operators: Operators, application: str = "shop", **fields: Any) -> Checkpoint:
    """The last checkpoint of a region with this graph."""
    region = CoordinatorHarness(operators=dict(operators), application=application).run()
    return msgspec.structs.replace(region.commit(1, step=5), **fields)


STORED = {"shop.orders": last(ORDERS), "shop.clicks": last(CLICKS)}


def program(options: GraphOptions = NO_OPTIONS, **parts: Operators) -> RegionSpec:
    """The first part of an application, with the others, named as the regions that they continue."""
    named = {f"shop.{first}": operators for first, operators in parts.items()}
    names = continued_regions("shop", named, STORED, options)
    fields = {"application": "shop", "graph_options": options}
    first, *beside = (
        replace(spec(2, operators=dict(operators), **fields), name=names.get(part, part))
        for part, operators in named.items()
    )
    return replace(first, beside=tuple(beside))


@pytest.mark.parametrize(
    ("parts", "renamed", "found"),
    [
        ({"orders": ORDERS, "clicks": CLICKS}, {}, {}),
        ({"sales": SALES, "clicks": CLICKS}, {"orders": "sales"}, {"shop.sales": "shop.orders"}),
        ({"sales": SALES, "clicks": CLICKS}, {}, {"shop.sales": "shop.orders"}),
        ({"prices": ORDERS | notes(prices="source")}, {}, {"shop.prices": "shop.orders"}),
        ({"counted": notes(counted="count")}, {"count": "counted"}, {"shop.counted": "shop.orders"}),
        ({"other": notes(other="source", sum="count", out="top_k")}, {}, {}),
        # The stored region named by its first operator has more in common with another part: its name counts.
        ({"orders": notes(orders="source"), "sales": SALES}, {}, {}),
    ],
    ids=["as before", "renamed", "renamed unsaid", "in front", "rows only", "another one", "divided"],
)
def test_a_part_continues_the_region_that_has_its_operators(
    parts: dict[str, Operators], renamed: dict[str, str], found: dict[str, str]
) -> None:
    named = {f"shop.{first}": operators for first, operators in parts.items()}
    assert continued_regions("shop", named, STORED, GraphOptions(renamed=renamed)) == found
    turned = dict(reversed(named.items())), dict(reversed(STORED.items()))
    assert continued_regions("shop", *turned, GraphOptions(renamed=renamed)) == found


def test_a_part_whose_first_operator_was_renamed_continues_with_its_state() -> None:
    options = GraphOptions(renamed={"orders": "sales"})
    renamed = program(options, sales=SALES, clicks=CLICKS)
    assert [renamed.name, *(one.name for one in renamed.beside)] == ["shop.orders", "shop.clicks"]
    check_application(renamed, STORED)
    # From then on nothing in the region has the name that it was given.
    later = {**STORED, "shop.orders": last(SALES)}
    assert continued_regions("shop", {"shop.sales": SALES}, later) == {"shop.sales": "shop.orders"}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"sales": SALES}, r"no part of this program continues region 'shop\.clicks' .*'longest'"),
        ({"orders": ORDERS | CLICKS, "new": notes(new="source")}, "neither merged nor divided"),
        ({"orders": notes(orders="source", out="sink"), "count": notes(count="count")}, "'count' is in the"),
    ],
    ids=["left", "merged", "divided"],
)
def test_no_region_is_left_merged_or_divided_unawares(parts: dict[str, Operators], why: str) -> None:
    options = GraphOptions(renamed={"orders": "sales"}) if "sales" in parts else GraphOptions()
    with pytest.raises(GraphChangeRefusedError, match=why):
        check_application(program(options, **parts), STORED)


def test_a_region_that_is_named_may_be_left() -> None:
    removed = GraphOptions(removed_regions=("shop.clicks",))
    with pytest.raises(GraphChangeRefusedError) as refusal:
        check_application(program(orders=ORDERS), STORED)
    assert 'removed_regions=("shop.clicks",)' in refusal.value.remedy
    assert "dos region delete URL shop.clicks" in refusal.value.remedy
    check_application(program(removed, orders=ORDERS), STORED)
    check_application(program(removed, orders=ORDERS, clicks=CLICKS), STORED)
    assert program(removed, orders=ORDERS, views=CLICKS).beside[0].name == "shop.clicks", "what fits is kept"


def test_forks_and_other_applications_are_no_regions_of_this_one() -> None:
    fork = ForkOrigin(region="shop.clicks", checkpoint=1, step=5, savepoint="fork-00000000")
    for other in (last(CLICKS, origin=fork), last(CLICKS, "shop.test")):
        stored = {"shop.orders": STORED["shop.orders"], "shop.test": other}
        parts = {"shop.orders": ORDERS, "shop.clicks": CLICKS}
        assert continued_regions("shop", parts, stored) == {}
        check_application(program(orders=ORDERS), stored)


def test_a_part_with_the_name_of_a_region_that_another_one_continues_is_refused() -> None:
    other = notes(orders="source", top="top_k")
    other["orders"] = msgspec.structs.replace(other["orders"], detail="elsewhere")
    with pytest.raises(
        GraphChangeRefusedError, match=r"part that begins with 'sales', and another"
    ) as refusal:
        program(GraphOptions(renamed={"orders": "sales"}), sales=SALES, orders=other)
    assert "rename operator 'orders'" in refusal.value.remedy
