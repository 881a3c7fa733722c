"""The process at a site whose regions run on Spark."""

from functools import partial

import pytest
import trio
from pyspark.sql import SparkSession

import dos
from dos_client import open_store
from sites import deploying
from sites.core.description import Description
from sites.runner import run_site
from tests.sites.deployments import States, described, send_and_count, stores


@pytest.mark.spark
def test_a_replica_runs_on_spark_while_the_deployment_names_it(spark: SparkSession) -> None:
    with stores(2) as (entry, own):
        description = described(entry, purdue=own)
        trio.run(follow, description, entry, own, spark)


async def follow(description: Description, entry: str, own: str, spark: SparkSession) -> None:
    states = States()
    async with open_store(entry) as store, trio.open_nursery() as nursery:

        async def site() -> None:
            start = partial(dos.run, spark)
            await run_site(description, "purdue", start=start, changed=states)

        await deploying.apply(store, description)
        nursery.start_soon(site)
        await states.until({"joined": "RUNNING"})
        await send_and_count(own)
        await deploying.forget(store, description, "purdue")
        await states.until({})
        nursery.cancel_scope.cancel()
