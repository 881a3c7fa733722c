"""Tasks that end with a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled at the end of the block.

    An exception of the block is raised as it is. A plain nursery would wrap it in an exception group.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # raised below, outside of the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
