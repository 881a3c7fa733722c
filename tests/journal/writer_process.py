"""A writer as a process, to be killed: `python -m tests.journal.writer_process URL DIRECTORY EPOCH`.

It takes the chain `J` over, appends numbered notes for ever, and prints each number once it is synced on
the quorum.
"""

import os
import sys

import trio

from dos_client.store import open_store
from journal import ChainWriter, Op, Record, take_over


async def write(url: str, directory: str, epoch: int) -> None:
    async with open_store(url) as store, await store.claim(directory, epoch, os.urandom(16)) as claim:
        state = await take_over(claim, "J", generation=store.record.generation)
        writer = await ChainWriter.open(claim, "J", state, store.record.generation)
        number = 0
        while True:
            for _ in range(20):
                number += 1
                position = writer.append(Record(Op.OUTPUT, number, (epoch,), (os.urandom(number % 3000),)))
            await writer.wait_synced(position)
            print(number, flush=True)
            if number % 400 == 0:
                await writer.roll()


if __name__ == "__main__":
    trio.run(write, sys.argv[1], sys.argv[2], int(sys.argv[3]))
